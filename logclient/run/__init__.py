"""Ship the records of a program without a line of code in it: ``logclient run COMMAND``.

The command puts the folder `startup` on PYTHONPATH. A Python that finds it there calls `process.start`, which
waits until the program imports ``logging`` or a framework, and then calls a function of `attach`.
"""
