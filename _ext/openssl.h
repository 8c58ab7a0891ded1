/* The functions of OpenSSL that TLS needs, taken at run time from the library that Python's ssl has loaded.
 *
 * No header of OpenSSL is needed. Its types are opaque, and these functions are public and the same in 1.1.1
 * and 3.x. The numbers are from the headers of both: ssl.h, bio.h, err.h, x509.h, x509_vfy.h.
 */
#ifndef LC_OPENSSL_H
#define LC_OPENSSL_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifndef RTLD_NOLOAD
#define RTLD_NOLOAD 0
#endif

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef struct x509_st X509;
typedef struct X509_VERIFY_PARAM_st X509_VERIFY_PARAM;
typedef int (*lc_password)(char *, int, int, void *);
typedef int (*lc_verify)(int, void *);

/* F(result, name, arguments) */
#define LC_OPENSSL_FUNCTIONS(F) \
    F(unsigned long, OpenSSL_version_num, (void)) \
    F(void, ERR_clear_error, (void)) \
    F(unsigned long, ERR_peek_last_error, (void)) \
    F(const char *, ERR_reason_error_string, (unsigned long)) \
    F(const SSL_METHOD *, TLS_client_method, (void)) \
    F(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *)) \
    F(void, SSL_CTX_free, (SSL_CTX *)) \
    F(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *)) \
    F(void, SSL_CTX_set_verify, (SSL_CTX *, int, lc_verify)) \
    F(X509_VERIFY_PARAM *, SSL_CTX_get0_param, (SSL_CTX *)) \
    F(void, SSL_CTX_set_security_level, (SSL_CTX *, int)) \
    F(int, SSL_CTX_set_cipher_list, (SSL_CTX *, const char *)) \
    F(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *)) \
    F(int, SSL_CTX_load_verify_locations, (SSL_CTX *, const char *, const char *)) \
    F(int, SSL_CTX_set_default_verify_paths, (SSL_CTX *)) \
    F(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *)) \
    F(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int)) \
    F(int, SSL_CTX_check_private_key, (const SSL_CTX *)) \
    F(void, SSL_CTX_set_default_passwd_cb, (SSL_CTX *, lc_password)) \
    F(void, SSL_CTX_set_default_passwd_cb_userdata, (SSL_CTX *, void *)) \
    F(X509_VERIFY_PARAM *, X509_VERIFY_PARAM_new, (void)) \
    F(void, X509_VERIFY_PARAM_free, (X509_VERIFY_PARAM *)) \
    F(int, X509_VERIFY_PARAM_set_flags, (X509_VERIFY_PARAM *, unsigned long)) \
    F(void, X509_VERIFY_PARAM_set_hostflags, (X509_VERIFY_PARAM *, unsigned int)) \
    F(int, X509_VERIFY_PARAM_set1_host, (X509_VERIFY_PARAM *, const char *, size_t)) \
    F(int, X509_VERIFY_PARAM_set1_ip_asc, (X509_VERIFY_PARAM *, const char *)) \
    F(const char *, X509_verify_cert_error_string, (long)) \
    F(int, X509_print_ex, (BIO *, X509 *, unsigned long, unsigned long)) \
    F(void, X509_free, (X509 *)) \
    F(SSL *, SSL_new, (SSL_CTX *)) \
    F(void, SSL_free, (SSL *)) \
    F(long, SSL_ctrl, (SSL *, int, long, void *)) \
    F(X509_VERIFY_PARAM *, SSL_get0_param, (SSL *)) \
    F(void, SSL_set_bio, (SSL *, BIO *, BIO *)) \
    F(void, SSL_set_connect_state, (SSL *)) \
    F(int, SSL_do_handshake, (SSL *)) \
    F(int, SSL_read, (SSL *, void *, int)) \
    F(int, SSL_write, (SSL *, const void *, int)) \
    F(int, SSL_shutdown, (SSL *)) \
    F(int, SSL_get_error, (const SSL *, int)) \
    F(long, SSL_get_verify_result, (const SSL *)) \
    F(const char *, SSL_get_version, (const SSL *)) \
    F(const SSL_CIPHER *, SSL_get_current_cipher, (const SSL *)) \
    F(const char *, SSL_CIPHER_get_name, (const SSL_CIPHER *)) \
    F(int, BIO_new_bio_pair, (BIO **, size_t, BIO **, size_t)) \
    F(const BIO_METHOD *, BIO_s_mem, (void)) \
    F(BIO *, BIO_new, (const BIO_METHOD *)) \
    F(int, BIO_free, (BIO *)) \
    F(long, BIO_ctrl, (BIO *, int, long, void *)) \
    F(size_t, BIO_ctrl_pending, (BIO *)) \
    F(size_t, BIO_ctrl_get_write_guarantee, (BIO *)) \
    F(int, BIO_nread0, (BIO *, char **)) \
    F(int, BIO_nread, (BIO *, char **, int)) \
    F(int, BIO_nwrite0, (BIO *, char **)) \
    F(int, BIO_nwrite, (BIO *, char **, int))

#define LC_MEMBER(result, name, arguments) result (*name) arguments;
typedef struct {
    LC_OPENSSL_FUNCTIONS(LC_MEMBER)
    X509 *(*SSL_get1_peer_certificate)(const SSL *);
    /* Options are an unsigned long in 1.1.1, and 64 bits in 3.x. */
    unsigned long (*set_options_long)(SSL_CTX *, unsigned long);
    uint64_t (*set_options_64)(SSL_CTX *, uint64_t);
    int version3;
} lc_openssl;
#undef LC_MEMBER

/* Look the functions up. Return NULL, or the name of one that is missing. */
static inline const char *lc_openssl_find(lc_openssl *o, void *library) {
    void *found;
    /* POSIX: a function fits in the pointer that dlsym returns. */
#define LC_FIND(result, name, arguments) \
    if ((found = dlsym(library, #name)) == NULL) return #name; \
    *(void **)&o->name = found;
    LC_OPENSSL_FUNCTIONS(LC_FIND)
#undef LC_FIND
    o->version3 = o->OpenSSL_version_num() >= 0x30000000UL;
    found = dlsym(library, o->version3 ? "SSL_get1_peer_certificate" : "SSL_get_peer_certificate");
    if (found == NULL) return "SSL_get_peer_certificate";
    *(void **)&o->SSL_get1_peer_certificate = found;
    found = dlsym(library, "SSL_CTX_set_options");
    if (found == NULL) return "SSL_CTX_set_options";
    if (o->version3) *(void **)&o->set_options_64 = found;
    else *(void **)&o->set_options_long = found;
    return NULL;
}

static inline void lc_set_options(lc_openssl *o, SSL_CTX *context, uint64_t options) {
    if (o->version3) o->set_options_64(context, options);
    else o->set_options_long(context, (unsigned long)options);
}

/* Return the library and the reason in an error number: err.h packs them in two ways. */
static inline int lc_error_library(const lc_openssl *o, unsigned long code) {
    return (int)((o->version3 ? code >> 23 : code >> 24) & 0xFF);
}
static inline int lc_error_reason(const lc_openssl *o, unsigned long code) {
    return (int)(code & (o->version3 ? 0x7FFFFFUL : 0xFFFUL));
}

#endif
