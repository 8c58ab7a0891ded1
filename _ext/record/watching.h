/* What shows that an entry of a dict, or an attribute of a class, was set or deleted. */
#ifndef LOGCLIENT_RECORD_WATCHING_H
#define LOGCLIENT_RECORD_WATCHING_H

#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX < 0x030C0000
/* Each change gives the dict another version. */
typedef int PyDict_WatchEvent;
#define lc_dict_version(dict, changes) (((PyDictObject *)(dict))->ma_version_tag)
#define lc_add_watcher(function) 0
#define lc_watch(watcher, dict) 0
#else
/* Each change of a dict that is watched counts as one of all of them. */
#define lc_dict_version(dict, changes) (changes)
#define lc_add_watcher PyDict_AddWatcher
#define lc_watch PyDict_Watch
#endif

/* The dict of an object, which keeps it; NULL: it has none. */
static inline PyObject *lc_dict_of(PyObject *o) {
    PyObject *dict = PyObject_GenericGetDict(o, NULL);
    if (dict == NULL)
        PyErr_Clear();
    else
        Py_DECREF(dict);
    return dict;
}

/* 0: none, until the next look-up of an attribute. */
#define lc_class_version(type) (((PyTypeObject *)(type))->tp_version_tag)

#endif
