// A small server made of the released @logux/server, for tests: node server.js '{"option": value, ...}'
//
// port             0: any
// token            what it wants; null: it takes whatever comes
// auth             ms that it needs to look at it
// subprotocol      its own, and the lowest that it takes: minSubprotocol
// env              "production" or "development"
// timeout, ping    ms; undefined: its own
// cert             file with a certificate and its key: it speaks TLS
// out              file to which each action is written before its processing ends, one JSON line each
// keep             "memory": its log keeps actions, as long as it lives
//                  "file": and those that `out` has of its earlier lives
// skew             ms that its clock is wrong by
// slow             ms that the processing of an action takes
// die              it kills itself (-9) when it has written that many actions, and before it says so
//
// It prints {"port", "nodeId"}, reads commands from standard input, a JSON object on each line, and answers
// each with a line. It ends with its input.

import { closeSync, existsSync, fstatSync, openSync, readFileSync, truncateSync, writeSync } from 'node:fs'
import { createServer } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { createInterface } from 'node:readline'

const options = {
  port: 0, token: 'secret', auth: 0, subprotocol: 1, minSubprotocol: 1, env: 'production', out: null, keep: null,
  skew: 0, slow: 0, die: 0, id: 'gold',
  ...JSON.parse(process.argv[2] ?? '{}')
}
process.env.NODE_ENV = options.env

const wall = Date.now
Date.now = () => wall() + options.skew

const { MemoryStore } = await import('@logux/core')
const { Server } = await import('@logux/server')

// -- what it has processed

let out
let size = 0
const earlier = []

if (options.out) {
  if (existsSync(options.out)) {
    // A line that a kill has cut off: the action was never said to be processed.
    const text = readFileSync(options.out)
    size = text.lastIndexOf(10) + 1
    if (size < text.length) truncateSync(options.out, size)
    if (options.keep === 'file') {
      for (const line of text.toString('utf8', 0, size).split('\n')) {
        if (line) earlier.push(/"metaId":"([^"]+)"/.exec(line)[1])
      }
    }
  }
  out = openSync(options.out, 'a')
  size = fstatSync(out).size
}

let written = 0

// `arrival` is where the line begins, so it rises over all lives. `mono` is the machine's monotonic clock.
function record(action, meta, more = {}) {
  written += 1
  if (out === undefined) return
  const line = Buffer.from(
    JSON.stringify({
      arrival: size,
      metaId: meta.id,
      time: meta.time,
      type: action.type,
      id: action.id,
      subprotocol: meta.subprotocol,
      now: Date.now(),
      received: wall() * 1000,
      mono: Number(process.hrtime.bigint() / 1000n),
      body: JSON.stringify(action),
      ...more
    }) + '\n'
  )
  size += writeSync(out, line)
  if (written === options.die) process.kill(process.pid, 'SIGKILL')
}

// A log by id: @logux/core's own looks at every action to find one.
class KeptLog extends MemoryStore {
  constructor(ids) {
    super()
    this.known = new Map(ids.map(id => [id, [{}, { id }]]))
  }

  async add(action, meta) {
    if (this.known.has(meta.id)) return false
    this.known.set(meta.id, [action, meta])
    this.lastAdded += 1
    meta.added = this.lastAdded
    return meta
  }

  async byId(id) {
    return this.known.get(id) ?? [null, null]
  }

  async changeMeta(id, diff) {
    const entry = this.known.get(id)
    if (entry) Object.assign(entry[1], diff)
    return entry !== undefined
  }
}

// -- the server

const quiet = () => {}
const pem = options.cert && readFileSync(options.cert)
const http = pem ? createTlsServer({ cert: pem, key: pem }) : createServer()
const server = new Server({
  env: options.env,
  id: options.id,
  logger: { debug: quiet, info: quiet, warn: quiet, error: report, fatal: report },
  minSubprotocol: options.minSubprotocol,
  ping: options.ping,
  server: http,
  store: options.keep === 'file' ? new KeptLog(earlier) : undefined,
  subprotocol: options.subprotocol,
  timeout: options.timeout
})

function report(details, message) {
  process.stderr.write(`${message}\n`)
}

server.auth(async ({ token }) => {
  if (options.auth) await new Promise(resolve => setTimeout(resolve, options.auth))
  return options.token === null || token === options.token
})

if (options.keep) {
  server.on('preadd', (action, meta) => {
    if (!action.type.startsWith('logux/')) meta.reasons.push('kept')
  })
}

let holding = null // a promise, while the processing of actions waits
let release = quiet
const thrown = new Set()

server.type('log/add', {
  access(ctx, action) {
    return !action.data?.deny
  },
  async process(ctx, action, meta) {
    if (holding) await holding
    if (options.slow) await new Promise(resolve => setTimeout(resolve, options.slow))
    if (action.data?.throw) throw new Error('as it was told')
    if (action.data?.throwOnce && !thrown.has(action.id)) {
      thrown.add(action.id)
      throw new Error('as it was told, once')
    }
    record(action, meta)
  }
})

// What its sender had said of itself when this came to be processed.
server.type('headers/see', {
  access: () => true,
  process: (ctx, action, meta) => record(action, meta, { headers: ctx.headers })
})

// It answers the one who asks.
server.type('echo/ask', {
  access: () => true,
  async process(ctx, action, meta) {
    record(action, meta)
    await ctx.sendBack({ type: 'echo/answer', data: action.data })
  }
})

// Whoever is subscribed to the channel gets what is sent to it.
server.type('news/add', {
  access: () => true,
  resend: (ctx, action) => ({ channel: `news/${action.topic}` }),
  process: (ctx, action, meta) => record(action, meta)
})

server.channel('news/:topic', {
  access: ctx => ctx.params.topic !== 'secret',
  load: ctx => ({ type: 'news/last', topic: ctx.params.topic })
})

// -- its connections

const firsts = new Map() // connection -> the text of the first sync that it has brought

server.on('connected', client => {
  const { ws } = client.connection
  function look(data) {
    const text = data.toString()
    if (text.startsWith('["sync"')) {
      firsts.set(client, text)
      ws.off('message', look)
    }
  }
  ws.on('message', look)
})
server.on('disconnected', client => firsts.delete(client))

// -- commands

const commands = {
  // An action of its own, to {"clients": […]}, {"nodes": […]} and so on; it goes to everybody without.
  async send({ action, meta }) {
    const to = meta ?? { clients: [...server.clientIds.keys()] }
    return { id: (await server.log.add(action, to)).id }
  },
  // Connections break without a word.
  cut() {
    const clients = [...server.connected.values()]
    for (const client of clients) client.connection.ws.terminate()
    return { cut: clients.length }
  },
  // The first action of each connection comes once more, as from a client that does not know its outcome.
  // Where the log keeps it, no action of that client id is processed from here on.
  again() {
    for (const [client, text] of firsts) {
      const message = JSON.parse(text)
      client.connection.emitter.emit('message', message.slice(0, 4))
    }
    return { again: firsts.size }
  },
  // It kills itself (-9) when it has written the next action; no answer.
  die() {
    options.die = written + 1
  },
  hold() {
    holding ??= new Promise(resolve => {
      release = resolve
    })
    return {}
  },
  release() {
    holding = null
    release()
    return {}
  },
  set(values) {
    Object.assign(options, values)
    return {}
  },
  headers({ data }) {
    for (const client of server.connected.values()) client.node.setLocalHeaders(data)
    return {}
  },
  state() {
    const clients = [...server.connected.values()].map(client => ({
      nodeId: client.nodeId,
      subprotocol: client.node.remoteSubprotocol,
      headers: client.node.remoteHeaders,
      lastReceived: client.node.lastReceived,
      lastSent: client.node.lastSent,
      syncing: client.node.syncing
    }))
    const { user, system } = process.cpuUsage()
    return { clients, written, waiting: server.actionToQueue.size, cpu: (user + system) / 1e6 }
  }
}

// One after another, so that answers come in their order.
let turn = Promise.resolve()
const input = createInterface({ input: process.stdin })
input.on('line', line => {
  turn = turn.then(async () => {
    const { do: name, ...given } = JSON.parse(line)
    const answer = await commands[name](given)
    if (answer) process.stdout.write(`${JSON.stringify(answer)}\n`)
  })
})
input.on('close', () => {
  if (out !== undefined) closeSync(out)
  process.exit(0)
})

await server.listen()
http.listen(options.port, '127.0.0.1', () => {
  process.stdout.write(`${JSON.stringify({ port: http.address().port, nodeId: server.nodeId })}\n`)
})
