/* The flags of calls on sockets; 0 where a system has none. */
#ifndef LOGCLIENT_SOCKETS_H
#define LOGCLIENT_SOCKETS_H

#include <errno.h>
#include <sys/socket.h>
#ifdef LC_LIKE_MACOS
#undef MSG_NOSIGNAL
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: the transport sets SO_NOSIGPIPE */
#endif
#ifndef MSG_MORE
#define MSG_MORE 0 /* only Linux has it */
#endif

#endif
