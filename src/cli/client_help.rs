//! The last part of the help texts of commands that send requests to a running service: examples and exit codes. A test
//! (`tests/it/cli_examples.rs`) runs each example.

pub(super) const RUN_USAGE: &str = "\
redlockd run [OPTIONS] NAME [--] COMMAND...
       redlockd run [OPTIONS] NAME NAME... -- COMMAND...";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  redlockd run deploy/prod -- ./deploy.sh
      acquire the lock or exit with 75; run the script; release the lock
  redlockd run --wait 5m --ttl 1m --note 'release 1.9' deploy/prod -- ./deploy.sh --fast
      wait in the queue for up to five minutes
  redlockd run --skip-if-held cron/nightly -- ./nightly.sh
      the others exit with 0 at once
  redlockd run --skip-if-held --at-least 1m cron/nightly -- ./nightly.sh
      one of many hosts runs it, also where their clocks differ by up to a minute
  redlockd run -E 1 --url http://a:5625 --url http://b:5625 x -- ./job.sh
      exit with 1 if the lock is held, like flock; try the second instance if the first is down
  redlockd run --wait 10m db/orders db/stock -- ./migrate.sh
      both locks or none; the command is ended if one of them is lost

The command's environment has REDLOCKD_RESOURCE, REDLOCKD_FENCE (pass it to the protected system; of
several locks both list them in order, with blanks), REDLOCKD_TOKEN_FILE and REDLOCKD_DEADLINE_MS
(Unix time in ms at the start; renewals extend it).

Exit codes: the command's own, 128+n for signal n; 64 wrong usage, 69 no instance or no quorum,
73 the token file cannot be written, 75 the lock is held (-E), 76 the lease was lost, 77 not
allowed, 126 and 127 the command cannot be run or found.";

pub(super) const ELECT_EXAMPLES: &str = "\
Examples:
  redlockd elect scheduler/leader -- ./scheduler.sh
      on every host: runs it on one of them, and on another when that one fails
  redlockd elect --listen 127.0.0.1:4040 scheduler/leader
      leads without a command; http://127.0.0.1:4040/leader answers 200 while it does, else 503

Campaigns until it is ended by a signal. The command has the environment that `run` gives, is ended
before a lease that cannot be renewed is over, and is started again in the next term.

Exit codes: 128+n for signal n, or the code with which the command ended after it; 64 wrong usage,
69 cannot listen, 73 the token file cannot be written, 77 not allowed, 126 and 127 the command cannot
be run or found.";

pub(super) const ACQUIRE_EXAMPLES: &str = "\
Examples:
  redlockd acquire --ttl 2m --wait 30s --token-file lease.token deploy/prod
      the token goes to a new file that only you can read
  T=$(redlockd acquire --ttl 2m deploy/staging)
      standard output is no terminal: it gets only the token
  redlockd acquire --json --owner ci-4711 --meta build=17 deploy/test
  redlockd acquire --ttl 2m db/orders db/stock
      both or none, with one token
  redlockd acquire --async --keep 2h --wait 6h --token-file lease.token deploy/prod
      the lease, if the lock is free; else a ticket (`redlockd ticket wait`), which waits without a
      process

Exit codes: 0 acquired, or there is a ticket, 64 wrong usage, 69 no instance or no quorum, 73 the
token file cannot be written, 75 the lock is held, 77 not allowed.";

pub(super) const KEEP_EXAMPLES: &str = "\
Examples:
  redlockd keep deploy/prod --for 4h --note 'data centre move' --token-file new.token
      nobody deploys for four hours; the token ends it earlier: redlockd release --token-file …
  redlockd keep deploy/prod --until 18:00 --wait 10m
      the same up to six in the evening, as soon as the present holder is done
  redlockd extend --token-file lease.token --keep 8h deploy/prod
      eight hours from now on

Exit codes: those of `acquire`.";

pub(super) const EXTEND_EXAMPLES: &str = "\
Examples:
  redlockd extend --token-file lease.token deploy/prod
      by its TTL, from now
  printf %s \"$T\" | redlockd extend --token-file - --ttl 5m --note 'step 2' deploy/staging

Exit codes: 0 extended, 64 wrong usage, 69 unknown (the old deadline is still valid), 76 the lease has
ended: stop working, 77 not allowed.";

pub(super) const RELEASE_EXAMPLES: &str = "\
Examples:
  redlockd release --token-file lease.token deploy/prod
  printf %s \"$T\" | redlockd release --token-file - deploy/staging

Exit codes: 0 released, 64 wrong usage, 69 no instance or no quorum, 76 the lease had ended
already, 77 not allowed.";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  redlockd status deploy/prod
  redlockd status --plain deploy/prod || echo free

Exit codes: 0 held, 1 free, 64 wrong usage, 69 no instance or no quorum, 77 not allowed.";

pub(super) const FENCE_EXAMPLES: &str = "\
Examples:
  redlockd fence deploy/prod 1763660823123456
      in a command of `run` these are $REDLOCKD_RESOURCE and $REDLOCKD_FENCE

A check before a write does not fence: another lease may begin between the two. Compare the fence
within the store's own write (docs/fencing.md).

Exit codes: 0 it is the fence of the lease that stands, 64 wrong usage, or a fence that was never
given, 69 no instance or no quorum, 76 the lease is over or has a successor, 77 not allowed.";

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  redlockd list
  redlockd list --prefix deploy/ --json
  redlockd list --plain | cut -f1
      one resource per line: name, state, owner, milliseconds left, fence, waiters, note, age of the list in milliseconds

Exit codes: 0 answered, 64 wrong usage, 69 no instance answers, or fewer nodes than a quorum
answered it (the list is printed all the same), 77 not allowed.";

pub(super) const NODES_EXAMPLES: &str = "\
Examples:
  redlockd nodes
  redlockd nodes --plain | cut -f1,2
      one node per line: name, state, votes (yes or no), latency in microseconds, clock offset in ms
  redlockd nodes --margin 0 --timeout 30s
      waits until a quorum votes. For a restart of n1: --margin 1 before it, so that a quorum is left,
      and --wait n1 --votes after it, until it votes again

Exit codes: 0 a quorum votes, and it is as required, 64 wrong usage, 69 no instance answers or too
few nodes vote, 75 it was not as required within --timeout, 77 not allowed.";

pub(super) const REPLACE_EXAMPLES: &str = "\
Examples:
  redlockd nodes replace --reason 'new machine' n3 redis://10.0.0.9
      the name n3 leads to 10.0.0.9 from now on, at every instance, also after a restart

Exit codes: 0 it votes, 64 wrong usage, no such node, or it got no vote in time, 69 no instance
answers, 77 not allowed.";

pub(super) const ADD_EXAMPLES: &str = "\
Examples:
  redlockd nodes add --reason 'two more machines' n4 redis://10.0.0.4
      every instance uses n4 from now on, also after a restart; add n5 next: with an even number of
      nodes no further failure is tolerated

Exit codes: 0 it votes, 64 wrong usage, the name is taken, or the list was not changed in time, 69
no instance answers, 77 not allowed.";

pub(super) const SETTINGS_EXAMPLES: &str = "\
Examples:
  redlockd nodes settings --reason 'nodes in three regions' --guard 2s --lock-delay 4s
      every instance follows within seconds, also one that is started later with its former
      configuration; correct the configurations all the same
  redlockd nodes settings --reason 'keys with a prefix' --key-template 'lock:{resource}'
      leases keep their holders; other services' Redlock libraries do not follow

Exit codes: 0 in force, 64 wrong usage, or a value that may not be, 69 no instance answers, or it
was not done in time, 77 not allowed.";

pub(super) const REMOVE_EXAMPLES: &str = "\
Examples:
  redlockd nodes remove --reason 'machine is sold' n5
      no instance uses n5 from now on; its server may be stopped before or after

Exit codes: 0 it votes no more, 64 wrong usage, no such node, or the list was not changed in time,
69 no instance answers, 77 not allowed.";

pub(super) const FORGET_EXAMPLES: &str = "\
Examples:
  redlockd nodes forget --reason 'disk burnt, host is off' n3
      where too few nodes vote: those that restarted wait for n3 no longer than one quarantine

Say it only of a node whose process has ended and does not come back with its memory. It holds until
a process answers under the name, at the instance that was asked, and until that instance ends.

Exit codes: 0 noted, 64 wrong usage, no such node, or it answers, 69 no instance answers, 77 not
allowed.";

pub(super) const FORCE_EXAMPLES: &str = "\
Examples:
  redlockd force --reason 'runner died' deploy/prod
      safe: no further renewals, the lock is free when the current lease ends
  redlockd force --now --if-fence 1763660823123456 --reason 'seen dead' deploy/prod
      UNSAFE: free at once, although the holder may still be working; only if this fence holds it

Exit codes: 0 done, 1 the lock is free, 64 wrong usage, 69 no instance or no quorum, 75 the holder
is not --if-fence, 77 not allowed.";

pub(super) const EVENTS_EXAMPLES: &str = "\
Examples:
  redlockd events --since 1h
      what has happened in the last hour, the oldest first
  redlockd events --at 10:42 --plain | cut -f1-3
      time, event, and lock, node or instance, from 10:39 to 10:45 UTC
  redlockd events --kind forced --json

Kinds: node_down, node_up, quarantined, two_servers, quorum_lost, quorum_back, forced, lost, deadlock,
started, stopping, reloaded (the last 10,000, and all of a day); acquired, released, expired (the last 1,024).

Exit codes: 0 done, 64 wrong usage, 69 no instance answers, 77 not allowed.";

pub(super) const WATCH_EXAMPLES: &str = "\
Examples:
  redlockd watch --prefix deploy/ --for 1s
      one line per event; without --for until it is interrupted
  redlockd watch --plain --for 1s | cut -f2,3
      one event per line: time, event, resource or node, owner, fence, token_id, reason
  redlockd watch --json --renewals --for 1s

Events: acquired, extended (with --renewals), released, expired, forced, lost, node_down, node_up,
quarantined. An interrupted stream is resumed after its last event, at any instance; standard
error reports if events may be missing.

Exit codes: 0 --count or --for is reached, or the output was closed; 64 wrong usage, 69 no instance
answers, or none did for --give-up, 77 not allowed, 130 or 143 interrupted.";

pub(super) const HEALTH_EXAMPLES: &str = "\
Examples:
  redlockd health
      ready: not stopping, and a quorum of nodes answered recently; without --url and REDLOCKD_URL the
      service with this environment's settings (REDLOCKD_LISTEN, REDLOCKD_CONFIG and the others)
  redlockd health --live --url http://127.0.0.1:5625 --timeout 1s

Exit codes: 0 yes, 1 no, 64 wrong usage.";
