"""The way from a log record or a mapping to a document: fields, context, place, sampling."""
