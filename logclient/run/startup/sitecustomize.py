"""Start logclient in a Python process, beside the ``sitecustomize`` that the process has without this one.

Any Python may find this file, also an old one and one without logclient.
"""

import os
import sys

if __name__ == "sitecustomize":  # not where tools import it by the name that it has in the package
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _folder]
    _ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, _ours)
        try:
            from logclient.run import process
        except ImportError as error:
            if getattr(error, "name", "logclient") != "logclient":
                sys.stderr.write("logclient: nothing is shipped: %s\n" % error)  # noqa: UP031
        except SyntaxError:  # an old Python
            pass
        else:
            process.start()
