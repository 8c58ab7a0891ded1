/* What shows that an entry of a dict, or an attribute of a class, was set or deleted. */
#ifndef LOGCLIENT_RECORD_WATCHING_H
#define LOGCLIENT_RECORD_WATCHING_H

#include <Python.h>
#include <frameobject.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030C0000
/* Each change gives the dict another version. */
#define lc_dict_version(dict) (((PyDictObject *)(dict))->ma_version_tag)
#define lc_watch(dict) 0
#else
/* Each change of a dict that is watched, in any interpreter, gives all of them another version. */
static uint64_t lc_changes;
static int lc_on_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    (void)event, (void)dict, (void)key, (void)value;
    lc_changes++;
    return 0;
}
#define lc_dict_version(dict) lc_changes
static int lc_watch(PyObject *dict) {
    static int watcher = -1;
    if (watcher < 0 && (watcher = PyDict_AddWatcher(lc_on_change)) < 0)
        return -1;
    return PyDict_Watch(watcher, dict);
}
#endif

/* The dict of an object; the object keeps it. */
static PyObject *lc_dict_of(PyObject *o) {
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
