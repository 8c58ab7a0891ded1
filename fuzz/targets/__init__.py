"""The fuzz targets, a file for each."""
