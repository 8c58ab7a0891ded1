# The functions of OpenSSL that TLS needs, taken at run time from the library that Python's ssl has loaded.
#
# No header of OpenSSL is needed. Its types are opaque, and these functions are public and the same in 1.1.1
# and 3.x. The numbers are from the headers of both: ssl.h, tls1.h, bio.h, err.h, x509*.h.

ctypedef void SSL
ctypedef void SSL_CTX
ctypedef void SSL_METHOD
ctypedef void SSL_CIPHER
ctypedef void BIO
ctypedef void BIO_METHOD
ctypedef void X509
ctypedef void X509_VERIFY_PARAM
ctypedef int (*lc_password)(char *, int, int, void *) noexcept
ctypedef void (*lc_set_options)(SSL_CTX *, unsigned long) noexcept nogil

# In the order of FUNCTIONS. SSL_CTX_set_options of 1.1.1 is an `lc_set_options`.
ctypedef struct lc_openssl:
    unsigned long (*OpenSSL_version_num)() noexcept nogil
    void (*ERR_clear_error)() noexcept nogil
    unsigned long (*ERR_peek_last_error)() noexcept nogil
    const char *(*ERR_reason_error_string)(unsigned long) noexcept nogil
    const SSL_METHOD *(*TLS_client_method)() noexcept nogil
    SSL_CTX *(*SSL_CTX_new)(const SSL_METHOD *) noexcept nogil
    void (*SSL_CTX_free)(SSL_CTX *) noexcept nogil
    long (*SSL_CTX_ctrl)(SSL_CTX *, int, long, void *) noexcept nogil
    void (*SSL_CTX_set_verify)(SSL_CTX *, int, void *) noexcept nogil
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
    void (*SSL_CTX_set_options)(SSL_CTX *, uint64_t) noexcept nogil
    bint is_3                    # behind the functions: it is not 1.1.1

FUNCTIONS = b"""
OpenSSL_version_num ERR_clear_error ERR_peek_last_error ERR_reason_error_string TLS_client_method
SSL_CTX_new SSL_CTX_free SSL_CTX_ctrl SSL_CTX_set_verify SSL_CTX_get0_param
SSL_CTX_set_security_level SSL_CTX_set_cipher_list SSL_CTX_set_ciphersuites
SSL_CTX_load_verify_locations SSL_CTX_set_default_verify_paths SSL_CTX_use_certificate_chain_file
SSL_CTX_use_PrivateKey_file SSL_CTX_check_private_key SSL_CTX_set_default_passwd_cb
SSL_CTX_set_default_passwd_cb_userdata X509_VERIFY_PARAM_new X509_VERIFY_PARAM_free
X509_VERIFY_PARAM_set_flags X509_VERIFY_PARAM_set_hostflags X509_VERIFY_PARAM_set1_host
X509_VERIFY_PARAM_set1_ip_asc X509_verify_cert_error_string X509_print_ex X509_free SSL_new SSL_free
SSL_ctrl SSL_get0_param SSL_set_bio SSL_set_connect_state SSL_do_handshake SSL_read SSL_write
SSL_shutdown SSL_get_error SSL_get_verify_result SSL_get_version SSL_get_current_cipher
SSL_CIPHER_get_name SSL_get1_peer_certificate BIO_new_bio_pair BIO_s_mem BIO_new BIO_free BIO_ctrl
BIO_ctrl_pending BIO_ctrl_get_write_guarantee BIO_nread0 BIO_nread BIO_nwrite0 BIO_nwrite
SSL_CTX_set_options
""".split()
"""The names of the functions, in the order of `lc_openssl`."""


# The library and the reason in an error number.
cdef inline int error_library(const lc_openssl *o, unsigned long code) noexcept nogil:
    return <int> ((code >> 23 if o.is_3 else code >> 24) & 0xFF)


cdef inline int error_reason(const lc_openssl *o, unsigned long code) noexcept nogil:
    return <int> (code & (0x7FFFFF if o.is_3 else 0xFFF))


cdef enum:
    SSL_FILETYPE_PEM = 1
    SSL_VERIFY_NONE = 0
    SSL_VERIFY_PEER = 1
    SSL_CTRL_MODE = 33
    SSL_CTRL_SET_TLSEXT_HOSTNAME = 55
    SSL_CTRL_SET_MIN_PROTO_VERSION = 123
    SSL_MODE_ENABLE_PARTIAL_WRITE = 1
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER = 2
    SSL_MODE_AUTO_RETRY = 4
    TLS1_2_VERSION = 0x0303
    SSL_ERROR_NONE = 0
    SSL_ERROR_SSL = 1
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_WANT_WRITE = 3
    SSL_ERROR_SYSCALL = 5
    SSL_ERROR_ZERO_RETURN = 6
    BIO_C_SHUTDOWN_WR = 142
    BIO_CTRL_INFO = 3
    ERR_LIB_SSL = 20
    SSL_R_CERTIFICATE_VERIFY_FAILED = 134
    SSL_R_UNEXPECTED_EOF_WHILE_READING = 294
    X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS = 4
    X509_CHECK_FLAG_NEVER_CHECK_SUBJECT = 0x20
    NAME_FLAGS = 2 << 16 | 0x12  # XN_FLAG_SEP_CPLUS_SPC, ASN1_STRFLGS_ESC_CTRL and UTF8_CONVERT
    CERTIFICATE_FLAGS = 0x168F   # X509_FLAG_NO_*, but for names, validity and extensions
