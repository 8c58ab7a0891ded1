/* The libFuzzer driver of a target in Python. It calls `run` of the module LOGCLIENT_FUZZ_TARGET with each
   input as a read-only memoryview of exactly its bytes, so that AddressSanitizer detects a read beyond them.
   An exception counts as a crash. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static PyObject *run, *release;

static void give_up(const char *what) {
    if (PyErr_Occurred()) PyErr_Print();
    fprintf(stderr, "fuzz driver: %s\n", what);
    fflush(stderr);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *python = getenv("LOGCLIENT_FUZZ_PYTHON"), *target = getenv("LOGCLIENT_FUZZ_TARGET");
    PyConfig config;
    PyStatus status;
    PyObject *module;
    (void)argc; (void)argv;
    if (!python || !target) give_up("LOGCLIENT_FUZZ_PYTHON and LOGCLIENT_FUZZ_TARGET must be set");
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    /* with the packages of that interpreter's environment */
    status = PyConfig_SetBytesString(&config, &config.program_name, python);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    module = PyImport_ImportModule("fuzz.memory");     /* before any extension */
    Py_XDECREF(module);
    module = module ? PyImport_ImportModule(target) : NULL;
    run = module ? PyObject_GetAttrString(module, "run") : NULL;
    release = PyUnicode_InternFromString("release");
    if (!run || !release) give_up("no target");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PyObject *view = PyMemoryView_FromMemory((char *)(uintptr_t)data, (Py_ssize_t)size, PyBUF_READ);
    PyObject *done = view ? PyObject_CallOneArg(run, view) : NULL;
    PyObject *gone = done ? PyObject_CallMethodNoArgs(view, release) : NULL;
    if (!gone) give_up("the target raised an exception");
    Py_DECREF(gone);
    Py_DECREF(done);
    Py_DECREF(view);
    return 0;
}
