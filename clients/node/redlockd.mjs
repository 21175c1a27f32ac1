// Client of redlockd, a distributed-lock service over HTTP. One file, no dependencies, Node.js 20 or later.
//
//   import { lock } from './redlockd.mjs'
//
//   await using l = await lock('deploy/prod', { ttl: '30s', wait: '1m', owner: 'ci-4711' })   // or try { … } finally { await l.release() }
//   await work({ signal: l.signal })     // aborted when the lease is lost
//   l.check()                            // throws LockLost where the lease may no longer be relied on
//   await write(row, l.fence)            // the store refuses a fence lower than the last one it saw
//
// A timer renews the lease at a third of its TTL until it is released. Where no URLs are given, REDLOCKD_URL is read (commas
// between several), else http://127.0.0.1:5625 is used. The API key is read from `key`, `keyFile`, REDLOCKD_KEY_FILE or
// ~/.config/redlockd/key, and is sent over plain HTTP only to loopback addresses, unless `insecureKey` is set.

import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import { homedir } from 'node:os'
import { join } from 'node:path'

export const VERSION = '0.1.0'
const DEFAULT_URL = 'http://127.0.0.1:5625'
/** Milliseconds for connecting to one instance, and for one answer. */
const CONNECT_TIMEOUT = 2_000
const ANSWER_TIMEOUT = 10_000
/**
 * After this time without an answer an instance is asked whether it is alive, and this long it has to answer that. The last one has
 * longer: nobody else can be asked, and a machine that pauses for a second must not fail a job. Milliseconds.
 */
const PROBE_AFTER = 500
const PROBE_TIMEOUT = 500
const LAST_PROBE_TIMEOUT = 2_500
/**
 * A request that waits on asks again after this pause, as long as there are other instances, for this time, and gives the instance up
 * after so many questions in a row without an answer: one that freezes would hold its callers until their waits end. Milliseconds.
 */
const PROBE_AGAIN = 3_000
const PROBE_AGAIN_TIMEOUT = 1_000
const PROBES_LOST = 2
/** A renewal is due after this part of the TTL: two of three may fail. */
const RENEWALS_PER_TTL = 3
/** One try of a renewal may take this part of the TTL, and at most this many milliseconds. */
const TRIES_PER_TTL = 12
const TRY_MAX = 2_000
/** Pause between renewals that failed: this part of the TTL, and at most this many milliseconds. */
const PAUSES_PER_TTL = 30
const PAUSE_MAX = 1_000
/** First and longest pause before an acquire that the service could not serve is sent again. Milliseconds. */
const RETRY_FIRST = 100
const RETRY_MAX = 2_000
/** Pause before the next request of a wait that is longer than the service's limit. Milliseconds. */
const RETRY_HELD = 20
/** Two clocks that are further apart were stepped, or one stood still. Milliseconds. */
const CLOCKS_DIFFER = 20
/** Longest single timer: timers stand still while the machine is suspended, leases do not. Milliseconds. */
const SLEEP_MAX = 500
/** Longest timer that Node.js has. Milliseconds. */
const TIMER_MAX = 2 ** 31 - 1
/** After a wait longer than this, the lease is extended once: its deadline then counts from a request without a wait. */
const LONG_WAIT = 1_000
/**
 * Longest request that waits for a ticket, how much later it is given up, and the pause before the next one: an instance that hangs
 * must not use up the minute after which the service ends a ticket that nobody asks for. Milliseconds.
 */
const POLL_MAX = 20_000
const POLL_LATE = 5_000
const POLL_PAUSE = 100
/** The largest answer that is read, in bytes. */
const ANSWER_MAX = 16 * 1024 * 1024
/** The largest key, in characters. */
const KEY_MAX = 256

/** Base class of all errors of this module. */
export class RedlockdError extends Error {
  get name() { return this.constructor.name }
}

/** No instance answered, or none could serve the request now (429, 5xx). `maybeDone`: it may have taken effect. */
export class Unavailable extends RedlockdError {
  constructor(message, maybeDone = false) {
    super(message)
    this.maybeDone = maybeDone
  }
}

/** The service refused the request. `status`: the HTTP status; `slug`: the problem's type; `problem`: the document. */
export class Refused extends RedlockdError {
  constructor(status, problem) {
    const errors = (problem.errors ?? []).map((e) => `; ${e.field}: ${e.detail}`)
    super(`${problem.detail ?? `status ${status}`}${errors.join('')}`)
    this.status = status
    this.problem = problem
    this.slug = String(problem.type ?? '').split('/').pop()
  }
}

/** Another holder has the lock, or the wait ran out (423). */
export class Held extends Refused {}

/** The lease of this token has ended, or another token holds the lock (409, 410). */
export class Lost extends Refused {}

/** The lease may no longer be relied on: stop working. */
export class LockLost extends RedlockdError {}

/** The ticket is over. `endedBy`: why, in the service's words, such as "released", "wait-timeout", "lost". */
export class TicketOver extends RedlockdError {
  constructor(endedBy) {
    super(`the ticket is over: ${endedBy}`)
    this.endedBy = endedBy
  }
}

const readClocks = () => [performance.now(), Date.now()]
let [elapsed, since] = [0, readClocks()]

/**
 * A clock made of two, in milliseconds. The monotonic one stands still while the machine is suspended and the wall clock may be
 * stepped back, so what passed is the larger of both differences: a lease is given up too early at worst. Both count from when they
 * last differed, so that a step back does not hide a later suspend.
 */
function now() {
  const read = readClocks()
  const [less, more] = read.map((value, i) => value - since[i]).sort((a, b) => a - b)
  const sum = elapsed + more
  if (more - less > CLOCKS_DIFFER) [elapsed, since] = [sum, read]
  return sum
}
const untilThen = (instant) => instant - now()

/** Resolves after `ms`, or with `true` as soon as `signal` is aborted. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve(true)
    const done = (aborted) => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
      resolve(aborted)
    }
    const onAbort = () => done(true)
    const timer = setTimeout(() => done(false), Math.max(0, ms))
    signal?.addEventListener('abort', onAbort)
  })
}

const jittered = (ms) => ms / 2 + Math.random() * (ms / 2)

/** Milliseconds of a number of milliseconds, or of a text such as "30s". */
function milliseconds(value, name) {
  const parts = typeof value === 'string' && /^(\d+)(ms|s|m|h)$/.exec(value)
  if (parts) return Number(parts[1]) * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }[parts[2]]
  if (typeof value === 'number' && value >= 0 && value < 1e12) return Math.round(value)
  throw new TypeError(`${name} must be milliseconds, or a text such as '30s'`)
}

function instance(text) {
  const url = new URL(text)
  if (!['http:', 'https:'].includes(url.protocol)) throw new TypeError(`${text} is no URL of an instance, such as ${DEFAULT_URL}`)
  if (url.username || url.password || url.search || url.hash) {
    throw new TypeError('the URL of an instance has no user, password, query or fragment')
  }
  const host = url.hostname.replace(/^\[|\]$/g, '')
  const isLoopback = host === 'localhost' || host === '::1' || (net.isIPv4(host) && host.startsWith('127.'))
  return { text: url.href.replace(/\/$/, ''), secure: url.protocol === 'https:', isLoopback }
}

function readKey(keyFile) {
  let path = keyFile ?? process.env.REDLOCKD_KEY_FILE
  if (!path) {
    path = join(process.env.XDG_CONFIG_HOME || join(homedir(), '.config'), 'redlockd', 'key')
    if (!existsSync(path)) return undefined
  }
  const key = readFileSync(path, 'latin1').trim()
  if (!/^[!-~]+$/.test(key) || key.length > KEY_MAX) throw new TypeError(`${path} holds no key`)
  return key
}

const lockPath = (resource) =>
  typeof resource === 'string'
    ? `/locks/${resource.split('/').map(encodeURIComponent).join('/')}`
    : `/locks?${resource.map((name) => `resource=${encodeURIComponent(name)}`).join('&')}`

/**
 * A client of one or several instances, which are tried in turn, the one that answered last first. Each request has a
 * connection of its own. Proxy variables are ignored and redirects are not followed: both would carry key and token elsewhere.
 */
export class Client {
  #urls
  #first = 0
  #key
  #ca

  /** urls: texts, or one text with commas; key, keyFile: the API key; ca: PEM authorities for https. */
  constructor({ urls = process.env.REDLOCKD_URL || DEFAULT_URL, key, keyFile, ca, insecureKey = false } = {}) {
    this.#urls = (typeof urls === 'string' ? urls.split(',') : urls).map((url) => instance(url.trim()))
    this.#key = key ?? readKey(keyFile)
    if (this.#key && !insecureKey && !this.#urls.every((url) => url.secure || url.isLoopback)) {
      throw new TypeError('the key is not sent over plain HTTP to other hosts: use https, or insecureKey: true')
    }
    this.#ca = ca
  }

  /** Acquires; see `Lock`. Rejects with Held, Refused, Unavailable, or the reason of `signal`; then nothing is held, as far as an instance could be reached. */
  lock(resource, options = {}) {
    return Lock.acquire(this, resource, options)
  }

  /** Asks for a lease that the service keeps, and does not wait for it; see `Ticket`. */
  ticket(resource, options) {
    return Ticket.ask(this, resource, options)
  }

  /** Who holds the lock, who waits, what each node says; null where nobody holds it. */
  async inspect(resource) {
    try {
      return (await this.request('GET', lockPath(resource))).document
    } catch (error) {
      if (error.slug === 'not-held') return null
      throw error
    }
  }

  /** All held leases, page by page. Filters: prefix, owner, state, limit. */
  async *list(filters = {}) {
    let cursor
    do {
      const query = new URLSearchParams({ ...filters, ...(cursor ? { cursor } : {}) })
      const page = (await this.request('GET', `/locks?${query}`)).document
      yield* page.items
      cursor = page.next_cursor
    } while (cursor)
  }

  /** State, latency and votes of each node. */
  async nodes() {
    return (await this.request('GET', '/nodes')).document
  }

  /**
   * One request, to the instances in turn until one gives an answer that the next could not better. One that hangs is passed over
   * after a second, as the last one after three; one that freezes while the request waits, after six. Resolves to
   * `{ document, started }`: the JSON answer or null, and when the answered request was sent. `wait`: for how many milliseconds the
   * service may let it wait; each instance is asked for what is left then. `timeout`: milliseconds for each instance beyond that.
   */
  async request(method, path, { body, token, headers, timeout = ANSWER_TIMEOUT, wait, signal } = {}) {
    const reasons = []
    let [maybeDone, refused] = [false, undefined]
    const [first, count, waitEnd] = [this.#first, this.#urls.length, now() + (wait ?? 0)]
    for (let i = 0; i < count; i++) {
      const index = (first + i) % count
      const url = this.#urls[index]
      const started = now()
      let sent = { path, body, headers, timeout }
      if (wait !== undefined) sent = askedToWait(sent, Math.max(0, untilThen(waitEnd)))
      let answer
      try {
        answer = await this.#send(url, method, { ...sent, key: this.#key, token, signal }, i + 1 === count)
      } catch (error) {
        signal?.throwIfAborted()
        reasons.push(`${url.text}: ${error.message}`)
        maybeDone ||= error.wasSent
        continue
      }
      if (answer.status === 503) { // draining, or without a quorum: another instance may do better
        refused = new Refused(503, answer.document ?? {})
        maybeDone = true
        continue
      }
      this.#first = index
      if (answer.status < 300) return { document: answer.document, started }
      throw refusal(answer.status, answer.document ?? {})
    }
    throw new Unavailable(refused?.message ?? `no instance answers: ${reasons.join('; ')}`, maybeDone)
  }

  /** `isLast`: whether it is the last instance; undefined: it is not asked whether it is alive. */
  #send(url, method, { path, body, key, token, headers, timeout, signal }, isLast) {
    const probe = isLast ? LAST_PROBE_TIMEOUT : PROBE_TIMEOUT
    const sent = { accept: 'application/json', 'user-agent': `redlockd-node/${VERSION}`, ...headers }
    if (key) sent.authorization = `Bearer ${key}`
    if (token) sent['lock-token'] = token
    const data = body === undefined ? undefined : JSON.stringify(body)
    if (data) Object.assign(sent, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(data) })
    return new Promise((resolve, reject) => {
      let isConnected = false
      const options = { method, headers: sent, agent: false, signal, ca: this.#ca }
      const request = (url.secure ? https : http).request(url.text + path, options)
      const end = (message) => request.destroy(new Error(message))
      const connect = Math.min(CONNECT_TIMEOUT, timeout)
      let limit = setTimeout(() => end(`no connection within ${Math.round(connect)} ms`), connect)
      const over = new AbortController()
      const finish = (settle, value) => {
        over.abort()
        clearTimeout(limit)
        settle(value)
      }
      /** Whether it answers after this pause that it is alive, or the request is over. */
      const answers = async (after, within) =>
        (await pause(after, over.signal)) || (await this.#isAlive(url, within, isLast)) || over.signal.aborted
      const watch = async () => {
        if (!(await answers(PROBE_AFTER, probe))) return end(`no answer within ${PROBE_AFTER + probe} ms`)
        if (this.#urls.length === 1) return // nobody else could serve the request: it waits on
        for (let lost = 0; !over.signal.aborted;) {
          lost = (await answers(lost ? PROBE_AFTER : PROBE_AGAIN, PROBE_AGAIN_TIMEOUT)) ? 0 : lost + 1
          if (lost === PROBES_LOST) return end('it stopped answering while the request waited')
        }
      }
      if (isLast !== undefined && timeout > PROBE_AFTER + probe) watch()
      request.on('socket', (socket) => {
        socket.on(url.secure ? 'secureConnect' : 'connect', () => {
          if (over.signal.aborted) return
          isConnected = true
          clearTimeout(limit)
          limit = setTimeout(() => end(`no answer within ${Math.round(timeout)} ms`), Math.min(timeout, TIMER_MAX))
          socket.setKeepAlive(true, 5_000)
        })
      })
      request.on('error', (error) => finish(reject, Object.assign(error, { wasSent: isConnected })))
      request.on('response', (response) => {
        const chunks = []
        let size = 0
        response.on('data', (chunk) => {
          chunks.push(chunk)
          size += chunk.length
          if (size > ANSWER_MAX) end("its answer is larger than any of redlockd's")
        })
        response.on('error', (error) => finish(reject, Object.assign(error, { wasSent: true })))
        response.on('end', () => {
          try {
            const isJson = size > 0 && (response.headers['content-type'] ?? '').includes('json')
            finish(resolve, { status: response.statusCode, document: isJson ? JSON.parse(Buffer.concat(chunks)) : null })
          } catch {
            finish(reject, Object.assign(new Error('its answer is no JSON'), { wasSent: true }))
          }
        })
      })
      request.end(data)
    })
  }

  /**
   * Whether it answers that it is alive. Of the last instance any answer will do: it may come from a proxy that passes on no more than
   * the API. The key is not sent.
   */
  async #isAlive(url, timeout, isLast) {
    try {
      const { status } = await this.#send(url, 'GET', { path: '/health/live', timeout })
      return isLast || status < 300
    } catch {
      return false
    }
  }
}

/** A preference is cut to the service's maximum; a field or query above it is refused. */
function askedToWait(request, wait) {
  const timeout = request.timeout + wait
  if (wait >= 1_000) return { ...request, timeout, headers: { ...request.headers, prefer: `wait=${Math.floor(wait / 1_000)}` } }
  const text = `${Math.floor(wait)}ms`
  if (request.body) return { ...request, timeout, body: { ...request.body, wait: text } }
  return { ...request, timeout, path: `${request.path}?wait=${text}` }
}

function refusal(status, problem) {
  const refused = new Refused(status, problem)
  if (status === 423) return new Held(status, problem)
  const results = problem?.results ?? [] // of several locks: the loss of one is the loss of all
  if (status >= 409 && results.some((one) => one.status === 409 || one.status === 410)) return new Lost(status, problem)
  if (status === 410 || (status === 409 && !['deadlock', 'ticket-waiting'].includes(refused.slug))) return new Lost(status, problem)
  if (status === 429 || status >= 500) return new Unavailable(refused.message, status >= 500)
  return refused
}

/** Until when a lease can be relied on: counted from before the request, plus what it waited, less 1 % of that. */
function deadlineOf(lease, started) {
  const waited = lease.waited_ms ?? 0
  return started + waited - Math.ceil(waited / 100) + lease.valid_for_ms
}

/**
 * A held lock. `token` (secret), `fence` (undefined for several names), `fences` (a Map of name and fence), `lease` (the answer),
 * `signal` (aborted with LockLost when the lease is lost).
 */
export class Lock {
  #client
  #deadline
  #margin
  #ttl
  #lost = new AbortController()
  #stopped = new AbortController()
  #renewing = Promise.resolve()

  /**
   * resource: a name; or an array of 2 to 16 names, which are acquired all or none, and are lost all as soon as one is.
   * ttl, wait: milliseconds, or texts such as "30s". mode: 'shared' for a lease beside other shared ones; limit: 3 for one of
   * three permits, whose number is in `slot` then. keep: for so long the service renews the lease, too, also when this process is
   * gone (see `leave`). owner, note, metadata: labels for people. margin: milliseconds before
   * the deadline at which the lease counts as lost (default: a tenth of the TTL, at most 500). signal: gives the wait up.
   * renew: false for no timer.
   */
  static async acquire(client, resource, options = {}) {
    const { ttl, keep, wait = 0, mode, limit, owner = '', note = '', metadata = {}, margin, signal, renew = true } = options
    // What is undefined is left out of the JSON.
    const duration = (value, name) => (value === undefined ? undefined : `${milliseconds(value, name)}ms`)
    const body = { owner, note, metadata, mode, limit, ttl: duration(ttl, 'ttl'), keep: duration(keep, 'keep') }
    const token = randomBytes(24).toString('base64url')
    const end = now() + milliseconds(wait, 'wait')
    let [retry, maybeHeld] = [RETRY_FIRST, false]
    for (;;) {
      const left = Math.max(0, untilThen(end))
      try {
        const { document, started } = await client.request('POST', lockPath(resource), { body, token, wait: left, signal })
        const lock = new Lock(client, resource, token, document, deadlineOf(document, started), margin)
        await lock.#begin(renew)
        return lock
      } catch (error) {
        const again = (error instanceof Held && untilThen(end) > RETRY_HELD) || (error instanceof Unavailable && untilThen(end) > 0)
        maybeHeld ||= Boolean(error.maybeDone) || !(error instanceof RedlockdError)
        if (!again) {
          if (maybeHeld) await abandon(client, resource, token)
          throw error
        }
        const delay = error instanceof Held ? RETRY_HELD : Math.min(jittered(retry), untilThen(end))
        retry = error instanceof Held ? RETRY_FIRST : Math.min(retry * 2, RETRY_MAX)
        if (await pause(delay, signal)) {
          await abandon(client, resource, token)
          throw signal.reason
        }
      }
    }
  }

  constructor(client, resource, token, lease, deadline, margin) {
    this.#client = client
    this.#ttl = lease.ttl_ms
    this.#margin = margin === undefined ? Math.min(lease.ttl_ms / 10, 500) : milliseconds(margin, 'margin')
    this.#deadline = deadline
    const fences = new Map((lease.leases ?? [lease]).map((one) => [one.resource, one.fence]))
    Object.assign(this, { resource, token, fence: lease.fence, fences, slot: lease.slot, lease })
  }

  get signal() { return this.#lost.signal }

  /** Milliseconds for which the lease can be relied on; 0 where it is lost or released. */
  validFor() {
    if (this.#lost.signal.aborted || this.#stopped.signal.aborted) return 0
    return Math.max(0, untilThen(this.#deadline) - this.#margin)
  }

  /** Throws LockLost where the lease may no longer be relied on. */
  check() {
    if (this.validFor() <= 0) throw new LockLost(`the lock ${this.resource} is lost, or its lease runs out`)
  }

  /** Renews by the TTL. Rejects with Lost where the lease has ended, Unavailable where the old deadline is still valid. */
  async extend({ timeout = ANSWER_TIMEOUT } = {}) {
    const options = { body: {}, token: this.token, timeout, signal: this.#stopped.signal }
    const { document, started } = await this.#client.request('PATCH', lockPath(this.resource), options)
    const deadline = deadlineOf(document, started)
    // An extend never shortens what was promised.
    this.#deadline = Math.max(this.#deadline, deadline)
  }

  /** Ends the lease. Rejects with LockLost where it had ended before; then another holder may have been at work. */
  async release() {
    if (this.#stopped.signal.aborted) return
    await this.leave()
    try {
      await this.#client.request('DELETE', lockPath(this.resource), { token: this.token })
    } catch (error) {
      if (!(error instanceof Lost)) throw error
      throw new LockLost(`the lock ${this.resource} was lost before it was released: ${error.message}`, { cause: error })
    }
  }

  /**
   * Renews no more and releases nothing: a lease with `keep` stays held by the service until its end, others until their TTL.
   * Resolves to the token, with which it can be extended and released.
   */
  async leave() {
    this.#stopped.abort()
    await this.#renewing
    return this.token
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.release()
  }

  async #begin(renew) {
    if ((this.lease.waited_ms ?? 0) > LONG_WAIT) {
      try {
        await this.extend({ timeout: 1_000 })
      } catch (error) {
        if (error instanceof Lost) {
          await abandon(this.#client, this.resource, this.token) // of several locks the others are held still
          throw error
        } // otherwise the careful estimate stands
      }
    }
    if (renew) this.#renewing = this.#renew()
  }

  async #renew() {
    let due = now() + this.#ttl / RENEWALS_PER_TTL
    for (;;) {
      const end = this.#deadline - this.#margin
      const left = Math.min(untilThen(due), untilThen(end))
      if (left > 0) {
        if (await pause(Math.min(left, SLEEP_MAX), this.#stopped.signal)) return
        continue
      }
      if (this.#stopped.signal.aborted) return
      if (untilThen(end) <= 0) return this.#lose('no renewal succeeded in time')
      const timeout = Math.max(1, Math.min(this.#ttl / TRIES_PER_TTL, TRY_MAX, untilThen(end)))
      try {
        await this.#extendBefore(end, timeout)
        due = now() + this.#ttl / RENEWALS_PER_TTL
      } catch (error) {
        if (error instanceof Lost) return this.#lose(error.message)
        due = now() + jittered(Math.min(this.#ttl / PAUSES_PER_TTL, PAUSE_MAX))
      }
    }
  }

  /** Several instances in turn may take longer than what is left: the loss is reported in time all the same. */
  async #extendBefore(end, timeout) {
    const late = new AbortController()
    const limit = pause(untilThen(end), late.signal).then(() => { throw new Unavailable('no answer in time') })
    limit.catch(() => {})
    try {
      await Promise.race([this.extend({ timeout }), limit])
    } finally {
      late.abort()
    }
  }

  #lose(reason) {
    if (!this.#stopped.signal.aborted) this.#lost.abort(new LockLost(`the lock ${this.resource} is lost: ${reason}`))
  }
}

/**
 * A request for a kept lease that waits at the service: this program may end meanwhile, and another one go on with
 * `new Ticket(client, { id, token })`; with the key that asked for it without the token. Ask (`wait`, `show`) at least once a minute,
 * unless there is a `callback`: a ticket that nobody asks for ends. Nothing here renews the lease: the service does.
 *
 * `id` (null: the lock was free, and there is no ticket), `token` (secret), `state` ("waiting", "granted", "accepted" or "ended"),
 * `endedBy`, `fence` (undefined for several names), `fences` (a Map), `document` (the last answer).
 */
export class Ticket {
  #client

  /**
   * keep: for how long the service renews the lease. wait: for how long the ticket waits (undefined: the service's default).
   * callback: "target:NAME" or a URL below that of a target, which is informed of the grant for `accept`. Durations are milliseconds
   * or texts such as "2h". ttl, owner, note, metadata, mode, limit: as in `Lock.acquire`.
   */
  static async ask(client, resource, options) {
    const { keep, wait, ttl, accept, owner = '', note = '', metadata = {}, mode, limit, callback } = options
    const duration = (value, name) => (value === undefined ? undefined : `${milliseconds(value, name)}ms`)
    const durations = { keep: duration(keep, 'keep'), wait: duration(wait, 'wait'), ttl: duration(ttl, 'ttl'), accept: duration(accept, 'accept') }
    const body = { async: true, owner, note, metadata, mode, limit, callback, ...durations }
    const token = randomBytes(24).toString('base64url')
    const end = now() + ANSWER_TIMEOUT
    for (let retry = RETRY_FIRST; ; retry = Math.min(retry * 2, RETRY_MAX)) {
      try { // with the same token it is the same ticket
        const { document } = await client.request('POST', lockPath(resource), { body, token })
        return new Ticket(client, { id: document.ticket ?? null, token, resource }).#read({ state: 'accepted', ...document })
      } catch (error) {
        if (!(error instanceof Unavailable) || untilThen(end) <= 0) throw error
        await pause(jittered(retry))
      }
    }
  }

  constructor(client, { id, token, resource }) {
    this.#client = client
    Object.assign(this, { id, token, resource, state: 'waiting', fences: new Map(), document: {} })
  }

  /** Asks for it once. The first one that shows it granted accepts it. Rejects with Refused (no such ticket), Unavailable. */
  async show() {
    if (this.id) this.#read(await this.#request('GET'))
    return this.document
  }

  /**
   * Waits until it has its lease, at most for `time` (undefined: as long as the ticket waits). True: it has; false: it waits still, and
   * keeps its place. Rejects with TicketOver, Refused, Unavailable.
   */
  async wait(time) {
    const end = now() + (time === undefined ? 1e12 : milliseconds(time, 'time'))
    let retry = RETRY_FIRST
    while (this.id) {
      const poll = Math.min(Math.max(0, untilThen(end)), POLL_MAX)
      try {
        this.#read(await this.#request('GET', { wait: poll, timeout: POLL_LATE }))
      } catch (error) {
        if (!(error instanceof Unavailable) || untilThen(end) <= 0) throw error
        await pause(jittered(retry))
        retry = Math.min(retry * 2, RETRY_MAX)
        continue
      }
      if (this.state === 'ended') throw new TicketOver(this.endedBy)
      if (this.state !== 'waiting' || untilThen(end) <= 0) break
      retry = RETRY_FIRST
      await pause(POLL_PAUSE) // an instance that is stopping answers at once
    }
    return this.state === 'granted' || this.state === 'accepted'
  }

  /** Has the service renew the lease for so long from now on. Rejects with Lost where it is over, Refused while it waits. */
  async keep(keep) {
    const body = { keep: `${milliseconds(keep, 'keep')}ms` }
    if (this.id) this.#read(await this.#request('PATCH', { body }))
    else await this.#client.request('PATCH', lockPath(this.resource), { body, token: this.token })
  }

  /** Gives it up while it waits, else releases its lease. Rejects with Lost where it was over. */
  async end() {
    if (this.id) await this.#request('DELETE')
    else await this.#client.request('DELETE', lockPath(this.resource), { token: this.token })
    this.state = 'ended'
  }

  async #request(method, options = {}) {
    const path = `/tickets/${encodeURIComponent(this.id)}`
    return (await this.#client.request(method, path, { ...options, token: this.token })).document
  }

  #read({ token: _, ...document }) {
    const { state, ended_by: endedBy, fence } = document
    const leases = document.leases ?? (fence ? [document] : [])
    const fences = new Map(leases.map((one) => [one.resource, one.fence]))
    const resource = this.resource ?? document.resources ?? document.resource
    return Object.assign(this, { document, state, endedBy, fence, fences, resource })
  }
}

/** Gives back what an acquire that was given up may have been granted. */
async function abandon(client, resource, token) {
  try {
    await client.request('DELETE', lockPath(resource), { token, timeout: 2_000 })
  } catch {
    // Mostly 410: nothing was granted; otherwise the TTL ends it.
  }
}

let defaultClient

/** Acquires with the default client, which is made of the environment. */
export function lock(resource, options) {
  defaultClient ??= new Client()
  return defaultClient.lock(resource, options)
}
