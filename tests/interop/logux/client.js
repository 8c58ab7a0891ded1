// A client made of the released @logux/client or @logux/core, for tests:
// node client.js '{"server": "ws://…", "option": value, ...}'
//
// kind             "client": @logux/client; "node": core's ClientNode
// user, token, subprotocol
// n                actions to add
// offline          so many of them before it connects
// pace             ms between two of the others
// data             what each has beside its number
// ping, timeout    ms
// headers          what it says of itself
// stay             it does not end by itself
//
// It prints {"state": …} for each state that it comes to, {"received": action, "meta": …} for each action from
// elsewhere, {"ready": n} when it has added all, and when it knows the outcome of all {"done": …} with what
// it knows, errors too. Then it ends; with `stay`, when its input ends. A line of that, {"action": {…}}, is one
// more action to add.

import { createInterface } from 'node:readline'
import { WebSocket } from 'ws'

globalThis.WebSocket = WebSocket
process.env.NODE_ENV = 'production'

const { ClientNode, Log, MemoryStore, Reconnect, WsConnection } = await import('@logux/core')
const { Client } = await import('@logux/client')

const options = {
  kind: 'client', user: 'js', token: 'secret', subprotocol: 1, n: 10, offline: 0, pace: 0, data: {}, minDelay: 20,
  maxDelay: 50, timeout: 20_000, ping: 10_000, type: 'log/add', headers: null, stay: false,
  ...JSON.parse(process.argv[2])
}

function say(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`)
}

let node
let log
let start
let add

if (options.kind === 'client') {
  const client = new Client({
    allowDangerousProtocol: true,
    maxDelay: options.maxDelay,
    minDelay: options.minDelay,
    ping: options.ping,
    server: options.server,
    subprotocol: options.subprotocol,
    timeout: options.timeout,
    token: options.token,
    userId: options.user
  })
  node = client.node
  log = client.log
  start = () => client.start()
  add = action => client.sync(action).catch(() => {}) // an undo is counted below
} else {
  const nodeId = `${options.user}:${Math.random().toString(36).slice(2, 10)}:tab`
  log = new Log({ nodeId, store: new MemoryStore() })
  const connection = new Reconnect(new WsConnection(options.server), {
    maxDelay: options.maxDelay,
    minDelay: options.minDelay
  })
  node = new ClientNode(nodeId, log, connection, {
    onSend: async (action, meta) => {
      return action.type.startsWith('logux/') ? false : [action, { id: meta.id, time: meta.time }]
    },
    ping: options.ping,
    subprotocol: options.subprotocol,
    timeout: options.timeout,
    token: options.token
  })
  start = () => connection.connect()
  add = action => log.add(action, { reasons: ['syncing'] })
}

const errors = []
node.catch(error => errors.push(`${error.type ?? error.name}: ${error.description ?? error.message}`))
if (options.headers) node.setLocalHeaders(options.headers)

const mine = new Set()
const outcomes = { processed: 0, undone: {} }
let left = options.n
let added = 0

function finish() {
  if (left > 0 || options.stay) return
  say({ done: { ...outcomes, nodeId: node.localNodeId, errors, headers: node.remoteHeaders } })
  process.exit(0)
}

log.on('add', (action, meta) => {
  if (action.type === 'logux/processed' || action.type === 'logux/undo') {
    if (!mine.delete(action.id)) return
    if (action.type === 'logux/processed') outcomes.processed += 1
    else outcomes.undone[action.reason] = (outcomes.undone[action.reason] ?? 0) + 1
    if (options.kind === 'node') log.removeReason('syncing', { id: action.id })
    left -= 1
    finish()
  } else if (meta.id.split(' ')[1] === log.nodeId) {
    mine.add(meta.id)
  } else {
    say({ received: action, meta: { id: meta.id, time: meta.time } })
  }
})

node.on('state', () => {
  say({ state: node.state })
})

async function more(to, pace) {
  for (; added < to; added += 1) {
    if (pace) await new Promise(resolve => setTimeout(resolve, pace))
    add({ type: options.type, data: { ...options.data, n: added } })
  }
}

const input = createInterface({ input: process.stdin })
input.on('line', line => {
  const { action } = JSON.parse(line)
  left += 1
  add(action)
})
input.on('close', () => {
  if (options.stay) {
    options.stay = false
    left = 0
    finish()
  }
})

await more(options.offline, 0)
start()
node.waitFor('synchronized').then(async () => {
  await more(options.n, options.pace)
  say({ ready: added })
  finish()
})
