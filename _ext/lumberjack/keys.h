/* The members in front of the ids in bodies, up to their values. */
#ifndef LOGCLIENT_LUMBERJACK_KEYS_H
#define LOGCLIENT_LUMBERJACK_KEYS_H

#define lc_metadata_key ",\"@metadata\":{\"_id\":\""
#define lc_event_key "\"},\"event.id\":\""
#define lc_nested_key "\"},\"event\":{\"id\":\""

#endif
