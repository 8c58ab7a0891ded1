/* The functions of OpenSSL for the benchmarks, looked up in the library that Python's ssl has loaded.
 *
 * Its headers are not needed: all types are opaque, and the functions and numbers are the same in 1.1.1 and 3.x.
 */
#ifndef BENCH_LIBSSL_H
#define BENCH_LIBSSL_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct evp_cipher_st EVP_CIPHER;
typedef struct evp_cipher_ctx_st EVP_CIPHER_CTX;
typedef struct engine_st ENGINE;

enum { SSL_ERROR_SSL = 1, SSL_ERROR_WANT_READ = 2, SSL_ERROR_WANT_WRITE = 3, SSL_ERROR_ZERO_RETURN = 6 };
enum { SSL_CTRL_MODE = 33, SSL_CTRL_SET_READ_AHEAD = 41, SSL_CTRL_SET_MIN_PROTO_VERSION = 123 };
enum { SSL_MODE_ENABLE_PARTIAL_WRITE = 1, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER = 2 };
enum { SSL_FILETYPE_PEM = 1, SSL_VERIFY_PEER = 1, TLS1_2_VERSION = 0x0303, EVP_CTRL_GET_TAG = 16 };

#define EACH_FUNCTION(X) \
    X(const SSL_METHOD *, TLS_server_method, (void)) \
    X(const SSL_METHOD *, TLS_client_method, (void)) \
    X(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *)) \
    X(void, SSL_CTX_free, (SSL_CTX *)) \
    X(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *)) \
    X(void, SSL_CTX_set_verify, (SSL_CTX *, int, void *)) \
    X(void, SSL_CTX_set_default_read_buffer_len, (SSL_CTX *, size_t)) \
    X(int, SSL_CTX_load_verify_locations, (SSL_CTX *, const char *, const char *)) \
    X(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *)) \
    X(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int)) \
    X(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *)) \
    X(int, SSL_CTX_set_cipher_list, (SSL_CTX *, const char *)) \
    X(SSL *, SSL_new, (SSL_CTX *)) \
    X(void, SSL_free, (SSL *)) \
    X(int, SSL_set_fd, (SSL *, int)) \
    X(void, SSL_set_accept_state, (SSL *)) \
    X(int, SSL_connect, (SSL *)) \
    X(int, SSL_read, (SSL *, void *, int)) \
    X(int, SSL_write, (SSL *, const void *, int)) \
    X(int, SSL_shutdown, (SSL *)) \
    X(int, SSL_get_error, (const SSL *, int)) \
    X(const SSL_CIPHER *, SSL_get_current_cipher, (const SSL *)) \
    X(const char *, SSL_CIPHER_get_name, (const SSL_CIPHER *)) \
    X(unsigned long, ERR_get_error, (void)) \
    X(void, ERR_error_string_n, (unsigned long, char *, size_t)) \
    X(void, ERR_clear_error, (void)) \
    X(const EVP_CIPHER *, EVP_get_cipherbyname, (const char *)) \
    X(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_new, (void)) \
    X(void, EVP_CIPHER_CTX_free, (EVP_CIPHER_CTX *)) \
    X(int, EVP_CIPHER_CTX_ctrl, (EVP_CIPHER_CTX *, int, int, void *)) \
    X(int, EVP_EncryptInit_ex, (EVP_CIPHER_CTX *, const EVP_CIPHER *, ENGINE *, const unsigned char *, \
                                const unsigned char *)) \
    X(int, EVP_EncryptUpdate, (EVP_CIPHER_CTX *, unsigned char *, int *, const unsigned char *, int)) \
    X(int, EVP_EncryptFinal_ex, (EVP_CIPHER_CTX *, unsigned char *, int *))

static struct {
#define MEMBER(type, name, arguments) type(*name) arguments;
    EACH_FUNCTION(MEMBER)
#undef MEMBER
} ssl;

/* Load the library at `path`; its own dependency has what begins with EVP. Return 0, or -1 with an error on stderr. */
static int load_ssl(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "libssl: %s\n", dlerror());
        return -1;
    }
#define FIND(type, name, arguments) \
    *(void **)&ssl.name = dlsym(library, #name); \
    if (!ssl.name) { \
        fprintf(stderr, "libssl: no " #name "\n"); \
        return -1; \
    }
    EACH_FUNCTION(FIND)
#undef FIND
    return 0;
}

/* Print this thread's oldest error. */
static inline void print_ssl_error(const char *what) {
    char text[256] = "no error of OpenSSL";
    unsigned long code = ssl.ERR_get_error();
    if (code)
        ssl.ERR_error_string_n(code, text, sizeof text);
    fprintf(stderr, "%s: %s\n", what, text);
}

#endif
