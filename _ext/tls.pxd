# TLS over a socket, for the compiled pump.

from libc.stdint cimport uint8_t, uint64_t


cdef extern from "openssl.h":
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct SSL_CIPHER:
        pass
    ctypedef struct BIO:
        pass
    ctypedef struct BIO_METHOD:
        pass
    ctypedef struct X509:
        pass
    ctypedef struct X509_VERIFY_PARAM:
        pass
    ctypedef int (*lc_password)(char *, int, int, void *) noexcept
    ctypedef int (*lc_verify)(int, void *) noexcept nogil
    ctypedef struct lc_openssl:
        unsigned long (*OpenSSL_version_num)() noexcept nogil
        void (*ERR_clear_error)() noexcept nogil
        unsigned long (*ERR_peek_last_error)() noexcept nogil
        const char *(*ERR_reason_error_string)(unsigned long) noexcept nogil
        const SSL_METHOD *(*TLS_client_method)() noexcept nogil
        SSL_CTX *(*SSL_CTX_new)(const SSL_METHOD *) noexcept nogil
        void (*SSL_CTX_free)(SSL_CTX *) noexcept nogil
        long (*SSL_CTX_ctrl)(SSL_CTX *, int, long, void *) noexcept nogil
        void (*SSL_CTX_set_verify)(SSL_CTX *, int, lc_verify) noexcept nogil
        X509_VERIFY_PARAM *(*SSL_CTX_get0_param)(SSL_CTX *) noexcept nogil
        void (*SSL_CTX_set_security_level)(SSL_CTX *, int) noexcept nogil
        int (*SSL_CTX_set_cipher_list)(SSL_CTX *, const char *) noexcept nogil
        int (*SSL_CTX_set_ciphersuites)(SSL_CTX *, const char *) noexcept nogil
        int (*SSL_CTX_load_verify_locations)(SSL_CTX *, const char *, const char *) noexcept nogil
        int (*SSL_CTX_set_default_verify_paths)(SSL_CTX *) noexcept nogil
        int (*SSL_CTX_use_certificate_chain_file)(SSL_CTX *, const char *) noexcept nogil
        int (*SSL_CTX_use_PrivateKey_file)(SSL_CTX *, const char *, int) noexcept nogil
        int (*SSL_CTX_check_private_key)(const SSL_CTX *) noexcept nogil
        void (*SSL_CTX_set_default_passwd_cb)(SSL_CTX *, lc_password) noexcept nogil
        void (*SSL_CTX_set_default_passwd_cb_userdata)(SSL_CTX *, void *) noexcept nogil
        X509_VERIFY_PARAM *(*X509_VERIFY_PARAM_new)() noexcept nogil
        void (*X509_VERIFY_PARAM_free)(X509_VERIFY_PARAM *) noexcept nogil
        int (*X509_VERIFY_PARAM_set_flags)(X509_VERIFY_PARAM *, unsigned long) noexcept nogil
        void (*X509_VERIFY_PARAM_set_hostflags)(X509_VERIFY_PARAM *, unsigned int) noexcept nogil
        int (*X509_VERIFY_PARAM_set1_host)(X509_VERIFY_PARAM *, const char *, size_t) noexcept nogil
        int (*X509_VERIFY_PARAM_set1_ip_asc)(X509_VERIFY_PARAM *, const char *) noexcept nogil
        const char *(*X509_verify_cert_error_string)(long) noexcept nogil
        int (*X509_print_ex)(BIO *, X509 *, unsigned long, unsigned long) noexcept nogil
        void (*X509_free)(X509 *) noexcept nogil
        SSL *(*SSL_new)(SSL_CTX *) noexcept nogil
        void (*SSL_free)(SSL *) noexcept nogil
        long (*SSL_ctrl)(SSL *, int, long, void *) noexcept nogil
        X509_VERIFY_PARAM *(*SSL_get0_param)(SSL *) noexcept nogil
        void (*SSL_set_bio)(SSL *, BIO *, BIO *) noexcept nogil
        void (*SSL_set_connect_state)(SSL *) noexcept nogil
        int (*SSL_do_handshake)(SSL *) noexcept nogil
        int (*SSL_read)(SSL *, void *, int) noexcept nogil
        int (*SSL_write)(SSL *, const void *, int) noexcept nogil
        int (*SSL_shutdown)(SSL *) noexcept nogil
        int (*SSL_get_error)(const SSL *, int) noexcept nogil
        long (*SSL_get_verify_result)(const SSL *) noexcept nogil
        const char *(*SSL_get_version)(const SSL *) noexcept nogil
        const SSL_CIPHER *(*SSL_get_current_cipher)(const SSL *) noexcept nogil
        const char *(*SSL_CIPHER_get_name)(const SSL_CIPHER *) noexcept nogil
        X509 *(*SSL_get1_peer_certificate)(const SSL *) noexcept nogil
        int (*BIO_new_bio_pair)(BIO **, size_t, BIO **, size_t) noexcept nogil
        const BIO_METHOD *(*BIO_s_mem)() noexcept nogil
        BIO *(*BIO_new)(const BIO_METHOD *) noexcept nogil
        int (*BIO_free)(BIO *) noexcept nogil
        long (*BIO_ctrl)(BIO *, int, long, void *) noexcept nogil
        size_t (*BIO_ctrl_pending)(BIO *) noexcept nogil
        size_t (*BIO_ctrl_get_write_guarantee)(BIO *) noexcept nogil
        int (*BIO_nread0)(BIO *, char **) noexcept nogil
        int (*BIO_nread)(BIO *, char **, int) noexcept nogil
        int (*BIO_nwrite0)(BIO *, char **) noexcept nogil
        int (*BIO_nwrite)(BIO *, char **, int) noexcept nogil


# Results of `read` and `write` besides a number of bytes; 0 means: not now. The numbers are those of a pump.
cdef enum:
    TLS_BROKEN = -1
    TLS_CLOSED = -2

# Results of `interest`: what the connection waits for.
cdef enum:
    TO_READ = 1
    TO_WRITE = 2


cdef class OpenSsl:
    cdef lc_openssl f
    cdef readonly str version


cdef class TlsContext:
    cdef OpenSsl library
    cdef SSL_CTX *context
    cdef object password
    cdef object failure          # what `password` has raised
    cdef public bint check_hostname
    cdef bint verifies


cdef class TlsSocket:
    cdef OpenSsl library
    cdef TlsContext context
    cdef lc_openssl *o
    cdef SSL *ssl
    cdef BIO *inner              # owned by `ssl`
    cdef BIO *outer              # our end of the pair
    cdef object plain
    cdef int fd
    cdef int owner               # the process that may end this connection
    cdef bint eof                # the peer has sent its last byte
    cdef bint closed             # it has also said so, or that is taken as said
    cdef bint failed             # after a fatal error nothing is written or read
    cdef bint send_failed        # the system takes no more bytes
    cdef readonly bint received  # anything at all
    cdef bint reads_first        # nothing can be written before something was read
    cdef bint writes_first       # and the reverse
    cdef bint unread             # a call of `read` may find more without a byte from the kernel
    cdef int kind                # SSL_ERROR_* of the last failure
    cdef unsigned long code      # what OpenSSL's queue of errors had then
    cdef int error               # errno, where the system failed

    cdef object _failure(self)
    cdef int flush(self, bint more=*) noexcept nogil
    cdef int _fill(self) noexcept nogil
    cdef int _explain(self, int result) noexcept nogil
    cdef int _shake(self) noexcept nogil
    cdef ssize_t write(self, const uint8_t *data, size_t size) noexcept nogil
    cdef ssize_t read(self, uint8_t *data, size_t size) noexcept nogil
    cdef int interest(self, bint full) noexcept nogil
