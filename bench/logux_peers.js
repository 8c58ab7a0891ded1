// A peer of row `logux` as a process: node logux_peers.js client|node ADDRESS ACTION
//
// client   @logux/client: client.sync(action), settled by logux/processed
// node     @logux/core's ClientNode over a log that keeps nothing, with its one sync for each action
//
// Each line of standard input is {"n": actions, "warm": untimed actions before them, "ahead": the most actions
// without an outcome}. The program connects, adds the actions, and answers with a line of the time that they
// took. Then it disconnects, because a server asks each connection about each action.

import { createInterface } from 'node:readline'
import { WebSocket } from 'ws'

globalThis.WebSocket = WebSocket

const { ClientNode, Log, MemoryStore, WsConnection } = await import('@logux/core')
const { Client } = await import('@logux/client')

const [, , kind, address, text] = process.argv
const { id: place, ...rest } = JSON.parse(text)
const WIDTH = place.length

let added = 0

// Make a new object with a new id, like a program.
function action() {
  added += 1
  return { ...rest, id: String(added).padStart(WIDTH, '0') }
}

// Call `add` while more actions are allowed. The user calls `settled` for each outcome.
function pacer(add) {
  let wanted, ahead, sent, done, resolve
  const more = () => {
    while (sent < wanted && sent - done < ahead) {
      sent += 1
      add()
    }
  }
  return {
    settled() {
      done += 1
      if (done === wanted) resolve(done)
      else more()
    },
    run: (n, most) =>
      new Promise(found => {
        ;[wanted, ahead, sent, done, resolve] = [n, most, 0, 0, found]
        more()
      })
  }
}

function client() {
  const made = new Client({
    allowDangerousProtocol: true, server: address, subprotocol: 1, token: 'secret', userId: 'bench'
  })
  const pace = pacer(() => made.sync(action()).then(pace.settled))
  made.start()
  return { node: made.node, end: () => made.destroy(), run: pace.run }
}

let tabs = 0

function node() {
  tabs += 1
  const log = new Log({ nodeId: `bench:${process.pid}n${tabs}:tab`, store: new MemoryStore() })
  const connection = new WsConnection(address)
  const made = new ClientNode(log.nodeId, log, connection, {
    onSend: async (sent, meta) => !sent.type.startsWith('logux/') && [sent, { id: meta.id, time: meta.time }],
    subprotocol: 1,
    token: 'secret'
  })
  const pace = pacer(() => log.add(action()))
  log.on('add', received => {
    if (received.type === 'logux/processed') pace.settled()
    else if (received.type === 'logux/undo') throw new Error(`undone: ${received.reason}`)
  })
  connection.connect()
  return { node: made, end: () => made.destroy(), run: pace.run }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { n, warm, ahead } = JSON.parse(line)
  const peer = { client, node }[kind]()
  await peer.node.waitFor('synchronized')
  await peer.run(warm, ahead)
  const before = process.cpuUsage()
  const start = process.hrtime.bigint()
  const processed = await peer.run(n, ahead)
  const wall = Number(process.hrtime.bigint() - start) / 1e9
  const used = process.cpuUsage(before)
  process.stdout.write(`${JSON.stringify({ processed, wall, cpu: (used.user + used.system) / 1e6 })}\n`)
  peer.end()
}
process.exit(0)
