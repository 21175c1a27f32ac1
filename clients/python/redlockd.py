"""Client of redlockd, a distributed-lock service over HTTP. One file, standard library only, Python 3.9 or later.

    import redlockd

    with redlockd.lock("deploy/prod", ttl=30, wait=60, owner="ci-4711") as l:
        l.check()                      # raises LockLost where the lease may no longer be relied on
        write(row, fence=l.fence)      # the store refuses a fence lower than the last one it saw

A thread renews the lease at a third of its TTL until the block ends, then the lease is released. If the lease is lost,
`l.lost` (a threading.Event) is set, `on_lost` is called and `l.check()` raises. Python cannot stop a running block:
check before each step that relies on the lock, and pass the fence to the store that is written.

Where no URLs are given, REDLOCKD_URL is read (commas between several), else http://127.0.0.1:5625 is used. The API key
is read from `key`, `key_file`, REDLOCKD_KEY_FILE or ~/.config/redlockd/key, and is sent over plain HTTP only to
loopback addresses, unless `insecure_key` is set.
"""

import http.client
import ipaddress
import json
import os
import random
import secrets
import socket
import ssl
import threading
import time
import urllib.parse

__all__ = ["Client", "Lock", "lock", "Ticket", "Error", "Refused", "Held", "Lost", "LockLost", "TicketOver", "Unavailable"]
__version__ = "0.1.0"

DEFAULT_URL = "http://127.0.0.1:5625"
#: Seconds for connecting to the last instance, and for one answer.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 10.0
#: After so many seconds without an answer an instance is asked whether it is alive, and so many it has to answer that. The last
#: one has longer: nobody else can be asked, and a machine that pauses for a second must not fail a job.
PROBE_AFTER = 0.5
PROBE_TIMEOUT = 0.5
LAST_PROBE_TIMEOUT = 2.5
#: A request that waits on asks again after so many seconds, as long as there are other instances, for so many, and gives the
#: instance up after so many questions in a row without an answer: one that freezes would hold its callers until their waits end.
PROBE_AGAIN = 3.0
PROBE_AGAIN_TIMEOUT = 1.0
PROBES_LOST = 2
#: A renewal is due after this part of the TTL: two of three may fail.
RENEWALS_PER_TTL = 3
#: One try of a renewal may take this part of the TTL, and at most this many seconds.
TRIES_PER_TTL = 12
TRY_MAX = 2.0
#: Pause between renewals that failed: this part of the TTL, and at most this many seconds.
PAUSES_PER_TTL = 30
PAUSE_MAX = 1.0
#: First and longest pause before an acquire that the service could not serve is sent again, in seconds.
RETRY_FIRST = 0.1
RETRY_MAX = 2.0
#: Pause before the next request of a wait that is longer than the service's limit, in seconds.
RETRY_HELD = 0.02
#: Longest single sleep, in seconds: timers stand still while the machine is suspended, leases do not.
SLEEP_MAX = 0.5
#: After a wait longer than this, the lease is extended once: its deadline then counts from a request without a wait.
LONG_WAIT = 1.0
#: Longest request that waits for a ticket, how much later it is given up, and the pause before the next one, in seconds: an
#: instance that hangs must not use up the minute after which the service ends a ticket that nobody asks for.
POLL_MAX = 20.0
POLL_LATE = 5.0
POLL_PAUSE = 0.1
#: The largest answer that is read, in bytes.
ANSWER_MAX = 16 * 1024 * 1024
#: The largest key file that is read, in bytes.
KEY_MAX = 256


class Error(Exception):
    """Base class of all errors of this module."""


class Unavailable(Error):
    """No instance answered, or none could serve the request now (429, 5xx). `maybe_done`: it may have taken effect."""

    def __init__(self, message, maybe_done=False):
        super().__init__(message)
        self.maybe_done = maybe_done


class Refused(Error):
    """The service refused the request. `status`: the HTTP status; `slug`: the problem's type; `problem`: the document."""

    def __init__(self, status, problem):
        self.status = status
        self.problem = problem
        self.slug = str(problem.get("type", "")).rsplit("/", 1)[-1]
        detail = str(problem.get("detail") or f"status {status}")
        for error in problem.get("errors") or []:
            detail += f"; {error.get('field')}: {error.get('detail')}"
        super().__init__(detail)


class Held(Refused):
    """Another holder has the lock, or the wait ran out (423)."""


class Lost(Refused):
    """The lease of this token has ended, or another token holds the lock (409, 410)."""


class LockLost(Error):
    """The lease may no longer be relied on: stop working."""


class TicketOver(Error):
    """The ticket is over. `ended_by`: why, in the service's words, such as "released", "wait-timeout", "lost"."""

    def __init__(self, ended_by):
        super().__init__(f"the ticket is over: {ended_by}")
        self.ended_by = ended_by


class _LargerElapsed:
    """A clock made of two. The monotonic one may stand still while the machine is suspended (on macOS it does), and the wall
    clock may be stepped back, so what passed is the larger of both differences: a lease is given up too early at worst. Both
    count from when they last differed, so that a step back does not hide a later suspend."""

    DIFFER = 0.02  # seconds: more than two readings of coarse clocks are apart

    def __init__(self, monotonic=time.monotonic, wall=time.time):
        self._clocks, self._mutex, self._elapsed = (monotonic, wall), threading.Lock(), 0.0
        self._since = (monotonic(), wall())

    def __call__(self):
        with self._mutex:
            read = tuple(clock() for clock in self._clocks)
            passed = [now - before for now, before in zip(read, self._since)]
            now = self._elapsed + max(passed)
            if max(passed) - min(passed) > self.DIFFER:
                self._elapsed, self._since = now, read
            return now


if hasattr(time, "CLOCK_BOOTTIME"):
    def _now():
        """Seconds on Linux's clock that also counts while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:
    _now = _LargerElapsed()


def _duration(value, name):
    """Seconds as a number, or a text such as "500ms", as the service reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"{name} must be seconds, or a text such as '30s'")
    return f"{round(value * 1000)}ms"


def _wait_until(event, at):
    """Waits for `event` until `at`. True: it is set."""
    while True:
        left = at - _now()
        if left <= 0:
            return event.is_set()
        if event.wait(min(left, SLEEP_MAX)):
            return True


class _Url:
    """One instance: a checked http://host[:port][/prefix]."""

    def __init__(self, text):
        parts = urllib.parse.urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is no URL of an instance, such as {DEFAULT_URL}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("the URL of an instance has no user, password, query or fragment")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.secure else 80)
        self.prefix = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.text = f"{parts.scheme}://{host}:{self.port}{self.prefix}"

    def may_carry_key(self):
        if self.secure or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Client:
    """A client of one or several instances, which are tried in turn, the one that answered last first.

    urls: texts, or one text with commas; key, key_file: the API key; ca_file: PEM authorities for https besides the
    system's. Thread-safe. Each request has a connection of its own. Proxy variables are ignored and redirects are not
    followed: both would carry key and token elsewhere.
    """

    def __init__(self, urls=None, key=None, key_file=None, ca_file=None, insecure_key=False):
        urls = urls or os.environ.get("REDLOCKD_URL") or DEFAULT_URL
        urls = urls.split(",") if isinstance(urls, str) else urls
        self._urls = [_Url(url.strip()) for url in urls]
        self._first = 0
        self._key = key if key is not None else _read_key(key_file)
        if self._key and not insecure_key and not all(url.may_carry_key() for url in self._urls):
            raise ValueError("the key is not sent over plain HTTP to other hosts: use https, or insecure_key=True")
        self._tls = None
        if any(url.secure for url in self._urls):
            self._tls = ssl.create_default_context()
            if ca_file:
                self._tls.load_verify_locations(ca_file)

    def lock(self, resource, **options):
        """A `Lock`, not yet acquired. Options: see `Lock`."""
        return Lock(self, resource, **options)

    def ticket(self, resource, keep, wait=None, ttl=None, owner="", note="", metadata=None, mode=None, limit=None,
               callback=None, accept=None):
        """A `Ticket`: asks for a lease that the service keeps for `keep`, and does not wait for it. resource: a name, or a
        list of names. wait: for how long the ticket waits (None: the service's default). callback: "target:NAME" or a URL below
        that of a target, which is informed of the grant for `accept`. Others: see `Lock`. Raises Refused, Unavailable."""
        durations = {"keep": keep, "wait": wait, "ttl": ttl, "accept": accept}
        body = {name: _duration(value, name) for name, value in durations.items() if value is not None}
        others = {"mode": mode, "limit": limit, "callback": callback}
        body.update((name, value) for name, value in others.items() if value is not None)
        body.update({"async": True, "owner": owner, "note": note, "metadata": dict(metadata or {})})
        token, end, pause = secrets.token_urlsafe(24), _now() + ANSWER_TIMEOUT, RETRY_FIRST
        while True:
            try:  # with the same token it is the same ticket
                answer, _ = self.request("POST", _lock_path(resource), body, token)
                break
            except Unavailable:
                if _now() >= end:
                    raise
                time.sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, RETRY_MAX)
        ticket = Ticket(self, answer.get("ticket"), token, resource)
        ticket._read({"state": "accepted", **answer})
        return ticket

    def inspect(self, resource):
        """Who holds the lock, who waits, what each node says; None where nobody holds it."""
        try:
            return self.request("GET", _lock_path(resource))[0]
        except Refused as error:
            if error.slug == "not-held":
                return None
            raise

    def list(self, **filters):
        """All held leases: a generator over the pages of GET /locks. Filters: prefix, owner, state, limit."""
        cursor = None
        while True:
            query = {**filters, **({"cursor": cursor} if cursor else {})}
            page = self.request("GET", "/locks", query=query)[0]
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def nodes(self):
        """State, latency and votes of each node."""
        return self.request("GET", "/nodes")[0]

    def request(self, method, path, body=None, token=None, headers=None, query=None, timeout=ANSWER_TIMEOUT, until=None,
                wait=None):
        """One request, to the instances in turn until one gives an answer that the next could not better. One that hangs is
        passed over after a second, as the last one after three; one that freezes while the request waits, after six.

        Returns (document or None, instant at which the answered request was sent). `wait`: for how many seconds the service
        may let it wait; each instance is asked for what is left then. `timeout`: seconds for each instance beyond that;
        `until`: instant after which none is asked. Raises Held, Lost, Refused, Unavailable.
        """
        reasons, maybe_done, refused = [], False, None
        first, begun = self._first, _now()
        for tried in range(1, len(self._urls) + 1):
            index = (first + tried - 1) % len(self._urls)
            url, started, limit = self._urls[index], _now(), timeout
            if until is not None:
                if started >= until:
                    break
                limit = min(timeout, until - started)
            sent = {"headers": dict(headers or {}), "query": dict(query or {}), "body": body}
            if wait is not None:
                left = max(0.0, wait - (started - begun))
                limit += left
                _ask_to_wait(sent, left)
            try:
                status, document = self._send(url, method, path, token=token, timeout=limit, is_last=tried == len(self._urls), **sent)
            except _NotSent as error:
                reasons.append(f"{url.text}: {error}")
                continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                reasons.append(f"{url.text}: {error or type(error).__name__}")
                maybe_done = True
                continue
            if status == 503:  # draining, or without a quorum: another instance may do better
                refused = Refused(status, document or {})
                maybe_done = True
                continue
            self._first = index
            if status < 300:
                return document, started
            raise _refusal(status, document or {})
        if refused:
            raise Unavailable(str(refused), maybe_done) from refused
        raise Unavailable("no instance answers: " + "; ".join(reasons), maybe_done)

    def _send(self, url, method, path, body, token, headers, query, timeout, is_last):
        if self._key:
            headers["Authorization"] = "Bearer " + self._key
        if token:
            headers["Lock-Token"] = token
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body).encode()
        if query:
            path += "?" + urllib.parse.urlencode(query)
        connection = self._connect(url, CONNECT_TIMEOUT if is_last else PROBE_AFTER + PROBE_TIMEOUT, timeout)
        try:
            with _Watch(self, url, connection.sock, timeout, is_last):
                status, kind, data = _exchange(connection, method, url.prefix + path, body, headers)
        finally:
            connection.close()
        document = json.loads(data) if data and "json" in kind else None
        if document is not None and not isinstance(document, dict):
            raise ValueError("its answer is no JSON object")
        return status, document

    def _connect(self, url, connect, timeout):
        connect = min(connect, timeout)
        if url.secure:
            connection = http.client.HTTPSConnection(url.host, url.port, timeout=connect, context=self._tls)
        else:
            connection = http.client.HTTPConnection(url.host, url.port, timeout=connect)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _NotSent(str(error) or type(error).__name__) from error
        _notice_dead_peers(connection.sock)
        connection.sock.settimeout(timeout)
        return connection


def _exchange(connection, method, path, body, headers):
    """Sends one request; status, type and bytes of its answer."""
    connection.request(method, path, body, {"Accept": "application/json", "User-Agent": f"redlockd-python/{__version__}", **headers})
    response = connection.getresponse()
    data = response.read(ANSWER_MAX + 1)
    if len(data) > ANSWER_MAX:
        raise ValueError("its answer is larger than any of redlockd's")
    return response.status, response.getheader("Content-Type", ""), data


def _ask_to_wait(request, seconds):
    """A preference is cut to the service's maximum; a field or query above it is refused."""
    if seconds >= 1:
        request["headers"]["Prefer"] = f"wait={int(seconds)}"
    elif request["body"] is not None:
        request["body"] = {**request["body"], "wait": _duration(seconds, "wait")}
    else:
        request["query"]["wait"] = _duration(seconds, "wait")


class _Watch:
    """Ends a request whose instance does not even answer that it is alive: a request that waits may take minutes. Of the last
    instance any answer will do: it may come from a proxy that passes on no more than the API. The key is not sent. Of an only
    instance no more than the first question counts: the request waits on."""

    def __init__(self, client, url, sock, timeout, is_last):
        self._client, self._url, self._sock, self._is_last = client, url, sock, is_last
        self._limit = LAST_PROBE_TIMEOUT if is_last else PROBE_TIMEOUT
        self._is_needed = timeout > PROBE_AFTER + self._limit
        self._answered, self._hangs = threading.Event(), None

    def __enter__(self):
        if self._is_needed:
            threading.Thread(target=self._run, name="redlockd probe", daemon=True).start()

    def __exit__(self, kind, error, trace):
        self._answered.set()
        if self._hangs and kind is not None and issubclass(kind, Exception):
            raise TimeoutError(self._hangs) from error

    def _run(self):
        if self._answered.wait(PROBE_AFTER):
            return
        why, lost = f"no answer within {round((PROBE_AFTER + self._limit) * 1000)} ms", PROBES_LOST
        if self._is_alive(self._limit):
            if len(self._client._urls) == 1:
                return
            why, lost = "it stopped answering while the request waited", 0
        while lost < PROBES_LOST:
            if self._answered.wait(PROBE_AFTER if lost else PROBE_AGAIN):
                return
            lost = 0 if self._is_alive(PROBE_AGAIN_TIMEOUT) else lost + 1
        if self._answered.is_set():
            return
        self._hangs = why
        try:
            # Of a socket, also where TLS is around it: the thread that reads is woken.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed meanwhile

    def _is_alive(self, limit):
        try:
            connection = self._client._connect(self._url, limit, limit)
            try:
                status = _exchange(connection, "GET", self._url.prefix + "/health/live", None, {})[0]
            finally:
                connection.close()
        except (_NotSent, OSError, http.client.HTTPException, ValueError):
            return False
        return self._is_last or status < 300


class _NotSent(Exception):
    """The request did not leave this machine."""


def _refusal(status, problem):
    if status == 423:
        return Held(status, problem)
    results = problem.get("results") or []  # of several locks: the loss of one is the loss of all
    if status >= 409 and any(one.get("status") in (409, 410) for one in results):
        return Lost(status, problem)
    if status == 410 or (status == 409 and not str(problem.get("type", "")).endswith(("/deadlock", "/ticket-waiting"))):
        return Lost(status, problem)
    if status == 429 or status >= 500:
        return Unavailable(str(Refused(status, problem)), status >= 500)
    return Refused(status, problem)


def _notice_dead_peers(sock):
    """A request that waits in the queue for minutes notices a dead instance after some 15 seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read_key(key_file):
    path = key_file or os.environ.get("REDLOCKD_KEY_FILE")
    if not path:
        path = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "redlockd", "key")
        if not os.path.exists(path):
            return None
    with open(path, encoding="ascii") as file:
        key = file.read(KEY_MAX + 1).strip()
    if not key or len(key) > KEY_MAX or not key.isprintable() or " " in key:
        raise ValueError(f"{path} holds no key")
    return key


def _lock_path(resource):
    if isinstance(resource, str):
        return "/locks/" + urllib.parse.quote(resource, safe="/:@~.-_")
    return "/locks?" + urllib.parse.urlencode([("resource", name) for name in resource])


class Lock:
    """One lock: acquired on entering a `with` block (or by `acquire`), renewed by a thread, released on leaving it.

    resource: a name; or a list of 2 to 16 names, which are acquired all or none, and are lost all as soon as one is.
    ttl, wait: seconds, or texts such as "30s" (ttl=None: the service's default). wait=0 asks once.
    mode="shared": beside other shared leases; limit=3: one of three permits, whose number is in `slot` afterwards.
    keep: for so long the service renews the lease, too, also when this process is gone: see `leave`.
    owner, note, metadata: labels for people. margin: seconds before the deadline at which the lease counts as lost
    (default: a tenth of the TTL, at most half a second). on_lost: called once, from the renewing thread, with a text.
    renew=False: no thread; call `extend`.

    Attributes after `acquire`: token (secret), fence (int; None for several names), fences (a dict of name and fence),
    slot (int, of a permit), lease (the answer), lost (threading.Event).
    """

    def __init__(self, client, resource, ttl=None, wait=0, owner="", note="", metadata=None, margin=None, on_lost=None,
                 renew=True, mode=None, limit=None, keep=None):
        self.client, self.resource = client, resource if isinstance(resource, str) else tuple(resource)
        self._body = {"owner": owner, "note": note, "metadata": dict(metadata or {})}
        if ttl is not None:
            self._body["ttl"] = _duration(ttl, "ttl")
        if keep is not None:
            self._body["keep"] = _duration(keep, "keep")
        if mode is not None:
            self._body["mode"] = mode
        if limit is not None:
            self._body["limit"] = limit
        self._wait = _seconds(wait, "wait")
        self._margin_asked, self._on_lost, self._renew = margin, on_lost, renew
        self._mutex = threading.Lock()
        self._thread = None
        self.token = self.fence = self.slot = self.lease = None
        self.fences = {}
        self.lost = threading.Event()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, kind, value, trace):
        try:
            self.release()
        except Error:
            # What was lost is said where it was noticed; an error of the block must not be hidden by this one.
            if kind is None:
                raise

    def acquire(self):
        """Acquires, waiting for at most `wait` in all. Raises Held, Refused, Unavailable; then nothing is held, as far
        as an instance could still be reached."""
        if self.token:
            raise RuntimeError("this lock is acquired already")
        token, until, pause, maybe_held = secrets.token_urlsafe(24), _now() + self._wait, RETRY_FIRST, False
        try:
            while True:
                left = max(0.0, until - _now())
                try:
                    lease, deadline = self._acquire_once(token, left)
                    break
                except Held:
                    if until - _now() <= RETRY_HELD:
                        raise
                    time.sleep(RETRY_HELD)  # the service's own limit of a wait ended it: go on waiting
                except Unavailable as error:
                    maybe_held |= error.maybe_done
                    if _now() >= until:
                        raise
                    time.sleep(min(random.uniform(pause / 2, pause), max(0.0, until - _now())))
                    pause = min(pause * 2, RETRY_MAX)
        except BaseException as error:
            # An interrupted wait may have been granted at that very moment.
            if maybe_held or not isinstance(error, Error):
                self._abandon(token)
            raise
        ttl = lease["ttl_ms"] / 1000
        margin = min(ttl / 10, 0.5) if self._margin_asked is None else _seconds(self._margin_asked, "margin")
        self.lease, self.fence, self.token, self.slot = lease, lease.get("fence"), token, lease.get("slot")
        self.fences = {one["resource"]: one["fence"] for one in lease.get("leases", [lease])}
        self._ttl, self._margin, self._deadline = ttl, margin, deadline
        self.lost.clear()
        self._stop = threading.Event()
        if lease.get("waited_ms", 0) > LONG_WAIT * 1000:
            try:
                self.extend(timeout=1.0)
            except Lost:
                self.token = None
                self._abandon(token)  # of several locks the others are held still
                raise
            except Error:
                pass  # the careful estimate stands
        if self._renew:
            self._thread = threading.Thread(target=self._run, name=f"redlockd {self.resource}", daemon=True)
            self._thread.start()
        return self

    def _acquire_once(self, token, wait):
        lease, started = self.client.request("POST", _lock_path(self.resource), self._body, token, wait=wait)
        return lease, _deadline(lease, started)

    def valid_for(self):
        """Seconds for which the lease can be relied on; 0 where it is lost."""
        if not self.token or self.lost.is_set():
            return 0.0
        return max(0.0, self._deadline - self._margin - _now())

    def check(self):
        """Raises LockLost where the lease may no longer be relied on."""
        if self.valid_for() <= 0:
            raise LockLost(f"the lock {self.resource} is lost, or its lease runs out")

    def extend(self, timeout=ANSWER_TIMEOUT, until=None):
        """Renews by the TTL. Raises Lost where the lease has ended, Unavailable where the old deadline is valid.
        `timeout`, `until`: as in `Client.request`."""
        path = _lock_path(self.resource)
        lease, started = self.client.request("PATCH", path, {}, self.token, timeout=timeout, until=until)
        with self._mutex:
            self._deadline = max(self._deadline, _deadline(lease, started))

    def release(self):
        """Ends the lease. Raises LockLost where it had ended before; then another holder may have been at work."""
        if not self.token:
            return
        token = self.leave()
        try:
            self.client.request("DELETE", _lock_path(self.resource), token=token)
        except Lost as error:
            raise LockLost(f"the lock {self.resource} was lost before it was released: {error}") from error

    def leave(self):
        """Renews no more and releases nothing: a lease with `keep` stays held by the service until its end, others until
        their TTL. Returns the token, with which it can be extended and released."""
        token, self.token = self.token, None
        self._stop.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(self._ttl)
        self._thread = None
        return token

    def _abandon(self, token):
        try:
            self.client.request("DELETE", _lock_path(self.resource), token=token, timeout=2.0)
        except Error:
            pass  # mostly 410: nothing was granted; otherwise the TTL ends it

    def _run(self):
        due, token = _now() + self._ttl / RENEWALS_PER_TTL, self.token
        while token:
            end = self._deadline - self._margin
            if _wait_until(self._stop, min(due, end)):
                return
            if _now() >= end:
                return self._lose("no renewal succeeded in time")
            timeout = max(0.001, min(self._ttl / TRIES_PER_TTL, TRY_MAX, end - _now()))
            try:
                self.extend(timeout, until=end)
                due = _now() + self._ttl / RENEWALS_PER_TTL
            except Lost as error:
                return self._lose(str(error))
            except Error:
                pause = min(self._ttl / PAUSES_PER_TTL, PAUSE_MAX)
                due = _now() + random.uniform(pause / 2, pause)

    def _lose(self, reason):
        if self._stop.is_set():
            return
        self.lost.set()
        if self._on_lost:
            self._on_lost(reason)


class Ticket:
    """A request for a kept lease that waits at the service: this program may end meanwhile, and another one go on with
    `Ticket(client, id, token)`; with the key that asked for it without the token. Ask (`wait`, `show`) at least once a minute,
    unless there is a `callback`: a ticket that nobody asks for ends. Nothing here renews the lease: the service does.

    Attributes: id (None: the lease was free, and there is no ticket), token (secret), state ("waiting", "granted",
    "accepted" or "ended"), ended_by, fence (int; None for several names), fences (a dict), document (the last answer).
    """

    def __init__(self, client, id, token=None, resource=None):
        self.client, self.id, self.token, self.resource = client, id, token, resource
        self.state, self.ended_by, self.fence, self.fences, self.document = "waiting", None, None, {}, {}

    def show(self):
        """Asks for it once. The first one that shows it granted accepts it. Raises Refused (no such ticket), Unavailable."""
        if self.id:
            self._read(self._request("GET"))
        return self.document

    def wait(self, seconds=None):
        """Waits until it has its lease, at most for `seconds` (None: as long as the ticket waits). True: it has; False: it waits
        still, and keeps its place. Raises TicketOver, Refused, Unavailable."""
        end = _now() + (1e9 if seconds is None else _seconds(seconds, "seconds"))
        pause = RETRY_FIRST
        while self.id:
            poll = min(max(0.0, end - _now()), POLL_MAX)
            try:
                self._read(self._request("GET", wait=poll, timeout=POLL_LATE))
            except Unavailable:
                if _now() >= end:
                    raise
                time.sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, RETRY_MAX)
                continue
            if self.state == "ended":
                raise TicketOver(self.ended_by)
            if self.state != "waiting" or _now() >= end:
                break
            pause = RETRY_FIRST
            time.sleep(POLL_PAUSE)  # an instance that is stopping answers at once
        return self.state in ("granted", "accepted")

    def keep(self, keep):
        """Has the service renew the lease for so long from now on. Raises Lost where it is over, Refused while it waits."""
        body = {"keep": _duration(keep, "keep")}
        if self.id:
            self._read(self._request("PATCH", body=body))
        else:
            self.client.request("PATCH", _lock_path(self.resource), body, self.token)

    def end(self):
        """Gives it up while it waits, else releases its lease. Raises Lost where it was over."""
        if self.id:
            self._request("DELETE")
        else:
            self.client.request("DELETE", _lock_path(self.resource), token=self.token)
        self.state = "ended"

    def _request(self, method, **options):
        path = "/tickets/" + urllib.parse.quote(self.id, safe="")
        return self.client.request(method, path, token=self.token, **options)[0]

    def _read(self, document):
        self.document = {name: value for name, value in document.items() if name != "token"}
        self.state, self.ended_by = document["state"], document.get("ended_by")
        self.resource = self.resource or document.get("resources") or document.get("resource")
        self.fence = document.get("fence")
        leases = document.get("leases") or ([document] if self.fence else [])
        self.fences = {one["resource"]: one["fence"] for one in leases}


def _seconds(value, name):
    """Seconds of a number, or of a text such as "1m"."""
    if isinstance(value, str):
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
        digits = value.rstrip("msh")
        if digits.isdigit() and value[len(digits):] in units:
            return int(digits) * units[value[len(digits):]]
        raise ValueError(f"{name} must be seconds, or a text such as '30s'")
    _duration(value, name)
    return float(value)


def _deadline(lease, started):
    """Until when a lease can be relied on: counted from before the request, plus what it waited, less 1 % of that."""
    waited = lease.get("waited_ms") or 0
    return started + (waited - -(-waited // 100) + lease["valid_for_ms"]) / 1000


_default = None


def lock(resource, **options):
    """A `Lock` of the default client, which is made of the environment. Options: see `Lock`."""
    global _default
    if _default is None:
        _default = Client()
    return _default.lock(resource, **options)
