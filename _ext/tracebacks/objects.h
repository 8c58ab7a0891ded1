/* Tracebacks, codes, weak references and types, as C sees them. */
#ifndef LOGCLIENT_TRACEBACKS_OBJECTS_H
#define LOGCLIENT_TRACEBACKS_OBJECTS_H

#ifdef Py_GIL_DISABLED
#define LC_SHARED 1
#else
#define LC_SHARED 0
#endif
#define lc_tb(o) ((PyTracebackObject *)(o))
#define lc_is_traceback(o) PyTraceBack_Check(o)
#define lc_next_of(o) ((PyObject *)lc_tb(o)->tb_next)
#define lc_lasti_of(o) (lc_tb(o)->tb_lasti)
#define lc_lineno_of(o) (lc_tb(o)->tb_lineno)
#define lc_code_of(o) ((PyObject *)PyFrame_GetCode(lc_tb(o)->tb_frame))
#define lc_globals_of(o) PyFrame_GetGlobals(lc_tb(o)->tb_frame)
#define lc_file_of(code) (((PyCodeObject *)(code))->co_filename)
#define lc_chars(s) (PyUnicode_GET_LENGTH(s) * PyUnicode_KIND(s))

/* What a weak reference leads to, to be compared with an object that is alive; NULL: it is gone. */
static inline PyObject *lc_referent(PyObject *reference) {
    PyObject *it = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(reference, &it) < 0) PyErr_Clear();
    Py_XDECREF(it);     /* if this is the last one, a code goes, and no Python code runs */
#else
    it = PyWeakref_GET_OBJECT(reference);
    if (it == Py_None) it = NULL;
#endif
    return it;
}
static inline PyObject *lc_namespace(PyObject *type) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyType_GetDict((PyTypeObject *)type);
#else
    return Py_NewRef(((PyTypeObject *)type)->tp_dict);
#endif
}
/* Whether attributes of an exception of this type are found in the usual way, and it is always true. */
static inline int lc_is_usual(PyTypeObject *t) {
    return Py_IS_TYPE(t, &PyType_Type)
        && t->tp_getattro == ((PyTypeObject *)PyExc_BaseException)->tp_getattro
        && !(t->tp_as_number && t->tp_as_number->nb_bool)
        && !(t->tp_as_mapping && t->tp_as_mapping->mp_length)
        && !(t->tp_as_sequence && t->tp_as_sequence->sq_length);
}

/* Each change gives a dict another tag; 0: this Python has none. */
#if PY_VERSION_HEX < 0x030D0000
#define lc_dict_tag(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define lc_dict_tag(dict) 0
#endif

#endif
