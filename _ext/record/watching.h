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

/* What an object keeps, without a reference; NULL without an error: it has none. */
static inline PyObject *lc_borrowed(PyObject *found) {
    if (found == NULL)
        PyErr_Clear();
    else
        Py_DECREF(found);
    return found;
}

/* The dict of an object. */
#define lc_dict_of(o) lc_borrowed(PyObject_GenericGetDict(o, NULL))
/* An attribute of an object whose class has none of that name. It makes no dict of the object, with which CPython
 * 3.11 and 3.12 look up all attributes more slowly. */
#define lc_attribute_of(o, name) lc_borrowed(PyObject_GenericGetAttr(o, name))

/* Let the objects of a type be called by the function at this offset, as methods are: without being bound. */
static inline void lc_call_as_method(PyObject *type, Py_ssize_t offset) {
    PyTypeObject *one = (PyTypeObject *)type;
    one->tp_vectorcall_offset = offset;
    one->tp_call = PyVectorcall_Call;
    one->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    PyType_Modified(one);
}

/* 0: none, until the next look-up of an attribute. */
#define lc_class_version(type) (((PyTypeObject *)(type))->tp_version_tag)

#endif
