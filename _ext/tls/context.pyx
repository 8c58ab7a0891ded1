PREFERRED = "TLS_AES_128_GCM_SHA256"

cdef class OpenSsl:
    """The functions of the library that Python's ``ssl`` has loaded; an ImportError says why not."""

    cdef lc_openssl f
    cdef readonly str version

    def __cinit__(self):
        cdef void *library
        import _ssl

        self.version = ssl.OPENSSL_VERSION
        path = getattr(_ssl, "__file__", None)
        if not self.version.startswith("OpenSSL ") or ssl.OPENSSL_VERSION_INFO < (1, 1, 1):
            raise ImportError(f"Python's ssl uses {self.version}, not OpenSSL 1.1.1 or newer")
        if path is None:
            raise ImportError("OpenSSL is linked statically to this Python")
        name = os.fsencode(path)
        library = dlopen(name, RTLD_NOLOAD | RTLD_NOW)
        if library == NULL:
            raise ImportError("the library of Python's ssl cannot be opened")
        self.f.is_3 = ssl.OPENSSL_VERSION_INFO >= (3,)
        names = FUNCTIONS if self.f.is_3 else [name.replace(b"get1_peer", b"get_peer") for name in FUNCTIONS]
        missing = find_functions(library, names, <void **> &self.f)
        if missing is not None:
            raise ImportError(f"OpenSSL is linked statically to this Python, or lacks {missing.decode()}")
        if self.f.OpenSSL_version_num() != ssl.OPENSSL_VERSION_NUMBER:
            raise ImportError("the process has a second OpenSSL, of another version than Python's ssl")


cdef _error(kind, lc_openssl *o, unsigned long code):
    cdef const char *said = o.ERR_reason_error_string(code)
    reason = None
    if said != NULL:
        # OpenSSL 3.2 has renamed "sslv3 alert ...", but not the constants.
        reason = said.decode("ascii", "replace").replace("ssl/tls alert", "sslv3 alert")
        reason = reason.replace(" ", "_").replace("-", "_").upper()
    error = kind(1, f"[SSL: {reason}]" if reason else "unknown error")
    error.reason = reason
    error.library = "SSL" if error_library(o, code) == ERR_LIB_SSL else None
    return error


cdef _file_error(lc_openssl *o):
    # Return why a file cannot be used, after a call in this thread that has failed.
    cdef int number = errno
    cdef unsigned long code = o.ERR_peek_last_error()
    o.ERR_clear_error()
    if number:
        return OSError(number, os.strerror(number))
    return _error(ssl.SSLError, o, code)


cdef int _ask(char *buffer, int size, int writing, void *context) noexcept with gil:
    # OpenSSL needs the password of a key.
    cdef TlsContext asking = <TlsContext> context
    try:
        answer = asking.password()
        data = answer.encode() if isinstance(answer, str) else bytes(answer)
        if len(data) > min(size, <int> MAX_PASSWORD):
            raise ValueError(f"password cannot be longer than {MAX_PASSWORD} bytes")
        memcpy(buffer, PyBytes_AS_STRING(data), <size_t> len(data))
        return <int> len(data)
    except BaseException as error:
        asking.failure = error
        return -1


@cython.no_gc_clear             # its last act needs the library
cdef class TlsContext:
    """The settings of connections: what is trusted, and our own certificate.

    Args:
        library: the functions of OpenSSL.
        like: an ``ssl.SSLContext``. Its ciphers, options, level of security and flags of verification are
            taken over; its certificates are not.
    """

    cdef OpenSsl library
    cdef SSL_CTX *context
    cdef object password
    cdef object failure          # what `password` has raised
    cdef public bint check_hostname  # the certificate must be for the name or address that we connect to

    def __cinit__(self, OpenSsl library not None, like: ssl.SSLContext):
        cdef lc_openssl *o = &library.f
        cdef unsigned int host_flags = X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
        cdef bint done
        self.library = library
        self.check_hostname = True
        o.ERR_clear_error()
        self.context = o.SSL_CTX_new(o.TLS_client_method())
        if self.context == NULL:
            raise MemoryError
        ciphers = [cipher["name"] for cipher in like.get_ciphers()]
        old = ":".join(name for name in ciphers if not name.startswith("TLS_")).encode()
        # AES with 128 bits first, as browsers have it: it costs a tenth less than with 256.
        modern = sorted((name for name in ciphers if name.startswith("TLS_")), key=PREFERRED.__ne__)
        new = ":".join(modern).encode()
        o.SSL_CTX_ctrl(
            self.context, SSL_CTRL_MODE,
            SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_AUTO_RETRY, NULL,
        )
        o.SSL_CTX_set_security_level(self.context, like.security_level)
        if o.is_3:
            o.SSL_CTX_set_options(self.context, like.options)
        else:
            (<lc_set_options> o.SSL_CTX_set_options)(self.context, like.options)
        if not like.hostname_checks_common_name:
            host_flags |= X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
        o.X509_VERIFY_PARAM_set_hostflags(o.SSL_CTX_get0_param(self.context), host_flags)
        done = (o.X509_VERIFY_PARAM_set_flags(o.SSL_CTX_get0_param(self.context), like.verify_flags)
                and o.SSL_CTX_ctrl(self.context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL)
                and (not old or o.SSL_CTX_set_cipher_list(self.context, old))
                and (not new or o.SSL_CTX_set_ciphersuites(self.context, new)))
        if not done:
            raise _error(ssl.SSLError, o, o.ERR_peek_last_error())
        self.set_verify(True)

    def __dealloc__(self):
        if self.context != NULL:
            self.library.f.SSL_CTX_free(self.context)

    def set_verify(self, bint verify):
        """Set whether the server's certificate must be valid; if not, its name is not looked at either."""
        self.check_hostname = self.check_hostname and verify
        self.library.f.SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER if verify else SSL_VERIFY_NONE, NULL)

    def load_default_certs(self):
        """Trust the system's authorities, where OpenSSL and its environment variables say they are."""
        cdef lc_openssl *o = &self.library.f
        with nogil:
            o.ERR_clear_error()
            o.SSL_CTX_set_default_verify_paths(self.context)
            o.ERR_clear_error()

    def load_verify_locations(self, cafile: str | None = None, capath: str | None = None):
        """Trust the authorities of a file, and of a directory with OpenSSL's names."""
        global errno
        cdef lc_openssl *o = &self.library.f
        cdef int done
        # Held by these names while their bytes are used.
        file = b"" if cafile is None else os.fsencode(cafile)
        folder = b"" if capath is None else os.fsencode(capath)
        cdef char *in_file = NULL if cafile is None else <char *> file
        cdef char *in_folder = NULL if capath is None else <char *> folder
        with nogil:
            o.ERR_clear_error()
            errno = 0
            done = o.SSL_CTX_load_verify_locations(self.context, in_file, in_folder)
        if not done:
            raise _file_error(o)
        o.ERR_clear_error()

    def load_cert_chain(self, certfile: str, keyfile: str | None, password: Callable[[], str]):
        """Show this certificate to servers that want one.

        Args:
            certfile: a PEM file with the certificate, followed by intermediate ones.
            keyfile: a PEM file with its key; None: the same file.
            password: a function that returns the password of the key; called if it has one.
        """
        global errno
        cdef lc_openssl *o = &self.library.f
        cdef int done
        cert = os.fsencode(certfile)
        key = cert if keyfile is None else os.fsencode(keyfile)
        cdef const char *in_cert = cert
        cdef const char *in_key = key
        self.password = password
        self.failure = None
        o.SSL_CTX_set_default_passwd_cb(self.context, _ask)
        o.SSL_CTX_set_default_passwd_cb_userdata(self.context, <void *> self)
        try:
            with nogil:
                o.ERR_clear_error()
                errno = 0
                done = o.SSL_CTX_use_certificate_chain_file(self.context, in_cert)
                if done == 1:
                    errno = 0
                    done = o.SSL_CTX_use_PrivateKey_file(self.context, in_key, SSL_FILETYPE_PEM)
                if done == 1:
                    errno = 0
                    done = o.SSL_CTX_check_private_key(self.context)
            if self.failure is not None:
                o.ERR_clear_error()
                raise self.failure
            if done != 1:
                raise _file_error(o)
        finally:
            o.SSL_CTX_set_default_passwd_cb_userdata(self.context, NULL)
            o.SSL_CTX_set_default_passwd_cb(self.context, NULL)
            self.password = self.failure = None
