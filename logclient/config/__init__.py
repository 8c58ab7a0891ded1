"""Configuration of clients: a URL and keywords become validated options.

``scheme://host[:port][,host[:port]...][/path][?option=value[&option=value...]]``

`parsing.parse` reads them, and the environment, into a `common.Config`. Each error is one line that names the
field and the rule. It shows a value only where that cannot be part of a password.

An option is declared once, as an attribute of a `Config` class: those of every protocol in `common`, the
others in the class of their protocol, which the registry names. ``python -m tools.options`` writes the page
and the types that are made from them.
"""
