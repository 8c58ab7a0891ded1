"""The folder that ``logclient run`` puts on PYTHONPATH. Nothing but `sitecustomize` may be in it."""
