/* Objects of Python, read without a call where that is possible. */
#ifndef LOGCLIENT_RECORD_OBJECTS_H
#define LOGCLIENT_RECORD_OBJECTS_H

#include <alloca.h>
#include <pthread.h>

#include "text.h"

static __thread lc_here lc_thread_cache;
/* The cache of this thread. Not inline: a compiler looks an address of this kind up again for each of its uses. */
static __attribute__((noinline)) lc_here *lc_this_thread(void) { return &lc_thread_cache; }
/* What a call within a log call needs: a document of the deepest containers on the stack, and frames for the
 * functions in Python that take an event or report an error. */
#define LC_STACK_NEED (128 << 10)
#define LC_FRAMES_NEED 50
/* The address that `lc_here.floor` has; 1: this system does not say where the stack ends. */
static uintptr_t lc_stack_floor(void) {
    uintptr_t low = 0;
    size_t size = 0;
#ifdef __APPLE__
    size = pthread_get_stacksize_np(pthread_self());
    low = (uintptr_t)pthread_get_stackaddr_np(pthread_self()) - size;
#elif defined(__linux__)
    pthread_attr_t attributes;
    void *address = NULL;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &address, &size);
        pthread_attr_destroy(&attributes);
        low = (uintptr_t)address;
    }
#endif
    return low == 0 ? 1 : low + (size / 2 < LC_STACK_NEED ? size / 2 : LC_STACK_NEED);
}
/* Whether a call within a log call has what it needs; a stack that the thread did not begin with is unknown. */
static int lc_may_nest(lc_here *thread) {
    char here;
    uintptr_t at = (uintptr_t)&here;
    if (thread->floor == 0)
        thread->floor = lc_stack_floor();
    if (at < thread->floor && at + LC_STACK_NEED > thread->floor)
        return 0;
#if PY_VERSION_HEX < 0x030C0000
    return PyThreadState_Get()->recursion_remaining > LC_FRAMES_NEED;
#else
    return PyThreadState_Get()->py_recursion_remaining > LC_FRAMES_NEED;
#endif
}
/* Begin a call in this thread. Return 0; 1: it is within another one; -1: it must not be made there. */
static inline int lc_enter(lc_here *thread, int heeds) {
    if (thread->calls == 0) {
        thread->refuses = 0;
    } else if ((heeds && thread->refuses) || !lc_may_nest(thread) || Py_EnterRecursiveCall(" in a log call")) {
        PyErr_Clear();
        thread->refuses = 1;
        return -1;
    }
    return thread->calls++ != 0;
}
static inline void lc_leave(lc_here *thread, int nested) {
    thread->calls--;
    if (nested)
        Py_LeaveRecursiveCall();
}
/* The place of a document's beginning: on the stack, but for a call within another one. `heap`: to be freed. */
#define lc_place(thread, heap, size) \
    ((heap) = (thread)->calls > 1 ? malloc(size) : NULL, (heap) == NULL ? (uint8_t *)alloca(size) : (heap))
#if PY_VERSION_HEX < 0x030C0000
/* A string of the old C API may not be in its final form. */
static inline int lc_ready(PyObject *s) {
    if (PyUnicode_READY(s) == 0) return 0;
    PyErr_Clear();
    return -1;
}
#else
#define lc_ready(s) 0
#endif
#ifdef Py_GIL_DISABLED
#define LC_SHARED 1
#else
#define LC_SHARED 0
#endif
#define lc_raise_current() (-1)
/* Look up an exact string in a dict whose keys are exact strings: no Python code runs. */
static inline PyObject *lc_find(PyObject *dict, PyObject *key) {
    return PyDict_GetItemWithError(dict, key);
}
typedef struct { PyObject *key, *value; } lc_entry;
/* The values of a dict whose keys belong to its class, in the order of these keys; NULL: `keys` are not those,
 * it has fewer than `n` values, or this Python is unknown. The layout is that of `pycore_dict.h`. */
#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#define lc_class_keys(dict) ((void *)((PyDictObject *)(dict))->ma_keys)
static inline PyObject **lc_class_values(PyObject *dict, const void *keys, Py_ssize_t n) {
    PyDictObject *d = (PyDictObject *)dict;
    if ((void *)d->ma_keys != keys || d->ma_values == NULL || d->ma_used < n)
        return NULL;
#if PY_VERSION_HEX < 0x030D0000
    return (PyObject **)d->ma_values;
#else
    return (PyObject **)((char *)d->ma_values + (sizeof(PyObject *) > 4 ? sizeof(PyObject *) : 4));
#endif
}
/* The entries of a dict with keys of its own, all of them strings, in the order of their insertion, and how many
 * there are; NULL: it is no such dict. A deleted entry has no value. */
static inline const lc_entry *lc_entries(PyObject *dict, Py_ssize_t *n) {
    const struct {
        Py_ssize_t references;
        uint8_t log2_size, log2_index_bytes, kind;
        uint32_t version;
        Py_ssize_t usable, entries;
        char indices[];
    } *k = (const void *)((PyDictObject *)dict)->ma_keys;
    if (((PyDictObject *)dict)->ma_values != NULL || k->kind != 1)
        return NULL;
    *n = k->entries;
    return (const lc_entry *)(k->indices + ((size_t)1 << k->log2_index_bytes));
}
#else
#define lc_entries(dict, n) ((void)(n), (const lc_entry *)NULL)
#define lc_class_keys(dict) NULL
#define lc_class_values(dict, keys, n) ((PyObject **)NULL)
#endif
/* As PyDict_Next; with its `n` entries without a call, for a dict that nothing changes meanwhile. */
static inline int lc_next(PyObject *dict, const lc_entry *entries, Py_ssize_t n, Py_ssize_t *at, PyObject **key,
                          PyObject **value) {
    Py_ssize_t i = *at;
    if (entries == NULL)
        return PyDict_Next(dict, at, key, value);
    while (i < n && entries[i].value == NULL) i++;
    if (i >= n) return 0;
    *key = entries[i].key;
    *value = entries[i].value;
    *at = i + 1;
    return 1;
}
/* Whether there is a further reference: then the program keeps it, and it will come again. */
#define lc_lasting(s) (Py_REFCNT(s) > 1)
/* Hold an exact str in place of another one: no Python code runs. */
static inline void lc_keep(PyObject **place, PyObject *s) {
    PyObject *before = *place;
    Py_INCREF(s);
    *place = s;
    Py_XDECREF(before);
}
/* An int that is small enough (they nearly all are), without a call; else 0. */
#if PY_VERSION_HEX >= 0x030C0000
#define lc_compact(v) PyUnstable_Long_IsCompact((PyLongObject *)(v))
#define lc_compact_value(v) ((long long)PyUnstable_Long_CompactValue((PyLongObject *)(v)))
#else
#define lc_compact(v) ((size_t)Py_SIZE(v) <= 1)
#define lc_compact_value(v) (Py_SIZE(v) ? (long long)((PyLongObject *)(v))->ob_digit[0] : 0LL)
#endif
/* A literal that ends with the quote that opens a string, and an ASCII string. Inlined: its length is known. */
__attribute__((always_inline))
static inline uint8_t *lc_put_string(uint8_t *to, const char *before, PyObject *v) {
    return lc_text_behind(to, before, strlen(before), PyUnicode_DATA(v), (size_t)PyUnicode_GET_LENGTH(v));
}

#endif
