/* Numbers of frames and runs that are too large for an enum of Cython. */
#ifndef LOGCLIENT_CONSTANTS_H
#define LOGCLIENT_CONSTANTS_H

#define LC_FRAME_MORE 0x80000000u
#define LC_FRAME_SIZE 0x7FFFFFFFu
#define LC_RUN_HEAD 8u              /* of a run: its size and its segment */
#define LC_RUN_MOST 65507           /* the payload of the largest datagram of IPv4 */
#define LC_RUN_SEGMENTS 64          /* the limit of every kernel with GSO */

#endif
