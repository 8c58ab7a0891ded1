cdef extern from "Python.h":
    void Py_INCREF(PyObject *o)
    void Py_XINCREF(PyObject *o)
    void Py_XDECREF(PyObject *o)
    void Py_DECREF(PyObject *o)
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    int PyUnicode_CheckExact(PyObject *o) nogil
    int PyUnicode_Check(PyObject *o) nogil
    int PyLong_CheckExact(PyObject *o) nogil
    int PyLong_Check(PyObject *o) nogil
    int PyFloat_CheckExact(PyObject *o) nogil
    int PyBool_Check(PyObject *o) nogil
    double PyFloat_AS_DOUBLE(PyObject *o) nogil
    int PyDict_CheckExact(PyObject *o) nogil
    int PyList_CheckExact(PyObject *o) nogil
    int PyList_Check(PyObject *o) nogil
    int PyTuple_CheckExact(PyObject *o) nogil
    Py_ssize_t PyList_GET_SIZE(PyObject *o) nogil
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t i) nogil
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o) nogil
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i) nogil
    int PyDict_Next(PyObject *d, Py_ssize_t *pos, PyObject **key, PyObject **value) nogil
    Py_ssize_t PyDict_GET_SIZE(PyObject *d) nogil
    long long PyLong_AsLongLongAndOverflow(PyObject *o, int *overflow) nogil     # never fails for an int
    double PyFloat_AsDouble(object o) except? -1
    char *PyOS_double_to_string(double v, char code, int precision, int flags, int *kind) except NULL
    void PyMem_Free(void *p)
    dict PyDict_Copy(object o)
    object PyObject_GenericGetDict(object o, void *context)
    object PyUnicode_FromObject(object o)
    int PyUnicode_Compare(PyObject *a, PyObject *b)
    Py_ssize_t PyUnicode_FindChar(PyObject *s, uint32_t c, Py_ssize_t start, Py_ssize_t end, int step) nogil
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t n, const char *errors)

cdef extern from "record/objects.h":
    bint lc_compact(PyObject *v) nogil
    long long lc_compact_value(PyObject *v) nogil
    int lc_raise_current() except -1
    int lc_ready(PyObject *s) nogil
    PyObject *lc_find(PyObject *dict, PyObject *key) nogil
    void *lc_class_keys(PyObject *dict) nogil
    PyObject **lc_class_values(PyObject *dict, const void *keys, Py_ssize_t n) nogil
    ctypedef struct lc_entry:
        PyObject *key
        PyObject *value
    const lc_entry *lc_entries(PyObject *dict, Py_ssize_t *n) nogil
    int lc_next(PyObject *dict, const lc_entry *entries, Py_ssize_t n, Py_ssize_t *at, PyObject **key,
                PyObject **value) nogil
    bint lc_lasting(PyObject *s) nogil
    void lc_keep(PyObject **place, PyObject *s) nogil
    uint8_t *lc_put_string(uint8_t *to, const char *before, PyObject *v) nogil
    int lc_enter(lc_here *thread, bint heeds)
    void lc_leave(lc_here *thread, bint nested)
    uint8_t *lc_place(lc_here *thread, uint8_t *heap, size_t size)
    bint LC_SHARED           # another thread may change a container while it is read
    bint PyUnicode_IS_COMPACT_ASCII(PyObject *s) nogil
    int PyUnicode_KIND(PyObject *s) nogil
    void *PyUnicode_DATA(PyObject *s) nogil
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject *s) nogil
    enum: Py_DTSF_ADD_DOT_0
    enum: PyUnicode_1BYTE_KIND
    uint32_t PyUnicode_READ(int kind, void *data, Py_ssize_t i) nogil

cdef extern from "text.h" nogil:
    enum: LC_SLACK
    enum: LC_WORST
    enum:
        KEY_TIMESTAMP, KEY_LEVEL, KEY_MESSAGE, KEY_ECS, KEY_LOGGER, KEY_FILE, KEY_LINE, KEY_FUNCTION, KEY_PID
        KEY_PROCESS, KEY_THREAD_ID, KEY_THREAD, KEY_ERROR_TYPE, KEY_ERROR_MESSAGE, KEY_STACK_TRACE
        KEY_FINGERPRINT, KEY_FLAGS, KEY_METADATA, KEY_EVENT_ID, KEY_EVENTS, KEYS
    enum:
        NAME_OBJECT, NAME_FILLED, NAME_LABELS, NAME_PLAIN, NAME_CARRIER, NAME_BELOW, NAME_BELOW_FILLED
        NAME_BELOW_LABELS, NAME_BELOW_ID, NAME_BELOW_OURS, NAME_DOTTED
    enum: LC_NAMES
    ctypedef struct lc_name:
        const char *text
        uint8_t n
        uint8_t what
    const lc_name *lc_names
    int lc_what(const void *text, size_t n)
    ctypedef struct lc_key:
        const char *text
        uint8_t n
    const lc_key *lc_keys
    const lc_key *lc_inner_keys
    ctypedef struct lc_here:
        int own
        int calls
        int refuses
        int64_t pid
        int64_t thread
        uint32_t size
        uint8_t process_n
        uint8_t thread_n
        char process_name[32]
        char thread_name[32]
        int nested
        uint8_t starts[4]
        char text[256]
    lc_here *lc_this_thread()
    void lc_clear(void *to, size_t n)
    uint8_t *lc_quote1(uint8_t *to, const uint8_t *source, size_t n)
    uint8_t *lc_quote_short(uint8_t *to, const uint8_t *source, size_t n)
    uint8_t *lc_field(uint8_t *to, int key, const void *source, size_t n)
    uint8_t *lc_characters(uint8_t *to, const void *source, int kind, size_t n, bint quoted, int *bad)
    uint8_t *lc_uint(uint8_t *to, uint64_t v)
    uint8_t *lc_int(uint8_t *to, int64_t v)
    uint8_t *lc_float(uint8_t *to, double v)
    uint8_t *lc_time(uint8_t *to, int64_t us, lc_here *last)
    bint lc_is_plain_time(const uint8_t *p, size_t n)
    bint lc_read_time(const uint8_t *p, size_t n, int64_t *us)
    void lc_prefetch "__builtin_prefetch"(const void *p)
    uint8_t *lc_micro(uint8_t *to, uint32_t us)
    long long llrint(double v)
    double rint(double v)
    double modf(double v, double *whole)
    int isfinite(double v)
