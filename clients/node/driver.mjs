#!/usr/bin/env node
// Drives the Node.js client for clients/conformance.py: commands on standard input, events on standard output.

import { createInterface } from 'node:readline'
import { Client, Held, LockLost, Lost, RedlockdError, TicketOver, Unavailable } from './redlockd.mjs'

const report = (event, members = {}) => process.stdout.write(`${JSON.stringify({ event, ...members })}\n`)
const kind = (error) => (error instanceof Held ? 'held' : error instanceof Unavailable ? 'unavailable' : error instanceof Lost ? 'lost' : 'refused')

const client = new Client()
let lock, ticket

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  try {
    if (command.do === 'acquire') {
      const { ttl_ms: ttl, wait_ms: wait, keep_ms: keep, mode, limit } = command
      const held = await client.lock(command.names ?? command.name, { ttl, wait, keep, mode, limit })
      held.signal.addEventListener('abort', () => report('lost', { why: held.signal.reason.message }))
      lock = held
      const fences = [...held.fences.values()]
      report('acquired', { fence: fences[0], fences, slot: held.slot, valid_for_ms: Math.round(held.validFor()) })
    } else if (command.do === 'check') {
      lock.check()
      report('valid', { valid_for_ms: Math.round(lock.validFor()) })
    } else if (command.do === 'release') {
      await lock.release()
      report('released')
    } else if (command.do === 'leave') {
      await lock.leave()
      report('left')
    } else if (command.do === 'ask') {
      ticket = await client.ticket(command.names ?? command.name, { keep: command.keep_ms, wait: command.wait_ms })
      report('asked', { state: ticket.state, ticket: ticket.id })
    } else if (command.do === 'await') {
      const granted = await ticket.wait(command.wait_ms)
      report(granted ? 'granted' : 'waiting', { fences: [...ticket.fences.values()] })
    } else if (command.do === 'end') {
      await ticket.end()
      report('ended')
    }
  } catch (error) {
    if (error instanceof TicketOver) report('over', { by: error.endedBy })
    else if (error instanceof LockLost) report('not-valid', { why: error.message })
    else if (error instanceof RedlockdError) report('refused', { kind: kind(error), why: error.message })
    else throw error
  }
}
