-- The ledger: what is placed where, and what that leaves. Times are microseconds since the Unix
-- epoch by the database's clock. Amounts are integers: milli-CPU, MiB, Mbit/s.

-- One row: who this ledger is, and the number of the next event.
CREATE TABLE ledger (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    id          TEXT    NOT NULL,            -- a UUID; an export names its source by it
    next_event  INTEGER NOT NULL,            -- the number the next event gets
    first_event INTEGER NOT NULL             -- the oldest event that is kept
);

-- What is stated of a node, as JSON. Changing it bumps node_room.constraint_gen.
CREATE TABLE node (
    id           TEXT    NOT NULL PRIMARY KEY,
    facts        TEXT    NOT NULL,
    heartbeat_at INTEGER NOT NULL            -- whole seconds; beside the facts, since it changes often
) WITHOUT ROWID;

-- Everything a guard reads of a node, in one narrow row.
CREATE TABLE node_room (
    node            TEXT    NOT NULL PRIMARY KEY,
    state           TEXT    NOT NULL,
    known           INTEGER NOT NULL,        -- 1 when its capacity is known; else nothing is granted
    zone            TEXT,
    rack            TEXT,
    constraint_gen  INTEGER NOT NULL,        -- rises with facts and state, never with claims
    rules_gen       INTEGER NOT NULL,        -- rises when a claim with a hard rule about others lands
    fence           INTEGER NOT NULL,        -- the highest fence given out here
    limit_cpu       INTEGER NOT NULL,
    limit_memory    INTEGER NOT NULL,
    limit_disk      INTEGER NOT NULL,
    limit_bandwidth INTEGER NOT NULL,
    limit_instances INTEGER NOT NULL,
    overhead_mib    INTEGER NOT NULL,        -- memory the hypervisor takes for each instance
    cap_mode        TEXT    NOT NULL,
    used_cpu        INTEGER NOT NULL CHECK (used_cpu >= 0),
    used_memory     INTEGER NOT NULL CHECK (used_memory >= 0),  -- without overhead
    used_disk       INTEGER NOT NULL CHECK (used_disk >= 0),
    used_bandwidth  INTEGER NOT NULL CHECK (used_bandwidth >= 0),
    used_instances  INTEGER NOT NULL CHECK (used_instances >= 0),
    used_capped     INTEGER NOT NULL CHECK (used_capped >= 0)
) WITHOUT ROWID;

-- Further integer classes of a node, such as gpu.
CREATE TABLE node_class (
    node  TEXT    NOT NULL,
    class TEXT    NOT NULL,
    lim   INTEGER NOT NULL,
    used  INTEGER NOT NULL CHECK (used >= 0),
    PRIMARY KEY (node, class)
) WITHOUT ROWID;

-- One row an instance and role. It counts in every state, until it is gone.
CREATE TABLE claim (
    instance        BLOB    NOT NULL,
    role            INTEGER NOT NULL,        -- 0 primary, 1 migration target
    node            TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    workload        TEXT,
    state           INTEGER NOT NULL,        -- 0 held, 1 binding, 2 active, 3 releasing
    cpu             INTEGER NOT NULL,
    memory          INTEGER NOT NULL,
    disk            INTEGER NOT NULL,
    bandwidth       INTEGER NOT NULL,
    capped          INTEGER NOT NULL,
    lease_until     INTEGER,                 -- only while held
    fence           INTEGER NOT NULL,
    request_id      TEXT    NOT NULL,
    batch           BLOB,
    name            TEXT,
    spec            TEXT    NOT NULL,        -- the request as JSON, without id and name
    ties            TEXT,                    -- groups, volumes, classes, values and slot, as JSON
    release_id      TEXT,
    secrets_version TEXT,
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (instance, role)
);  -- with a rowid: rows are added at the end, where SQLite is quickest

-- Only claims that can expire. Leases end in about the order in which they were given, so new
-- entries go to the end of it. There is no index by node on purpose: it would make every claim
-- touch one more page, and what is on a node is asked of the fleet in memory.
CREATE INDEX claim_held ON claim (lease_until) WHERE state = 0;

-- Answers that a retry gets again.
CREATE TABLE request (
    request_id TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL,             -- the same id with another body is refused
    answer     TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (request_id, owner)
);

-- "group" is a keyword everywhere.
CREATE TABLE team (
    id             TEXT    NOT NULL PRIMARY KEY,
    owner          TEXT,
    kind           TEXT    NOT NULL,         -- together, apart
    strength       TEXT    NOT NULL,         -- hard, soft
    topology       TEXT    NOT NULL,         -- node, rack, zone
    max_per_domain INTEGER,
    home           TEXT                      -- together: the domain its first member chose
) WITHOUT ROWID;

-- How many members of a group are in one domain: the row that makes affinity lockable.
CREATE TABLE team_domain (
    team    TEXT    NOT NULL,
    domain  TEXT    NOT NULL,
    members INTEGER NOT NULL CHECK (members >= 0),
    PRIMARY KEY (team, domain)
) WITHOUT ROWID;

CREATE TABLE team_member (
    team     TEXT    NOT NULL,
    instance BLOB    NOT NULL,
    role     INTEGER NOT NULL,
    PRIMARY KEY (team, instance, role)
) WITHOUT ROWID;

-- A local volume: where it lives and the one instance that uses it.
CREATE TABLE volume (
    id          TEXT NOT NULL PRIMARY KEY,
    owner       TEXT,
    home        TEXT NOT NULL,
    attached_to BLOB
) WITHOUT ROWID;

-- Discrete values: addresses, ports, network ids, licences.
CREATE TABLE pool (
    id           TEXT    NOT NULL PRIMARY KEY,
    kind         TEXT    NOT NULL,           -- ipv6, ipv4, number
    first        BLOB    NOT NULL,           -- 16 bytes, big-endian
    last         BLOB    NOT NULL,
    next         BLOB    NOT NULL,           -- where the search for a free value goes on
    quarantine_s INTEGER NOT NULL            -- how long a released value rests
) WITHOUT ROWID;

-- Values in use or at rest. A free value has no row, so a /64 is never enumerated.
CREATE TABLE pool_value (
    pool        TEXT    NOT NULL,
    value       BLOB    NOT NULL,
    instance    BLOB,
    role        INTEGER,
    released_at INTEGER,                     -- set while it rests
    PRIMARY KEY (pool, value)
) WITHOUT ROWID;

-- Limits of a tenant; only tenants with a quota have a row.
CREATE TABLE tenant (
    owner           TEXT    NOT NULL PRIMARY KEY,
    limit_cpu       INTEGER,
    limit_memory    INTEGER,
    limit_disk      INTEGER,
    limit_instances INTEGER,
    used_cpu        INTEGER NOT NULL CHECK (used_cpu >= 0),
    used_memory     INTEGER NOT NULL CHECK (used_memory >= 0),
    used_disk       INTEGER NOT NULL CHECK (used_disk >= 0),
    used_instances  INTEGER NOT NULL CHECK (used_instances >= 0)
) WITHOUT ROWID;

CREATE TABLE workload (
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    replicas INTEGER NOT NULL,
    body     TEXT    NOT NULL,               -- template and rules, as JSON
    PRIMARY KEY (owner, name)
) WITHOUT ROWID;

-- Who sits in which slot of a workload's revision.
CREATE TABLE slot (
    owner    TEXT    NOT NULL,
    workload TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    slot     INTEGER NOT NULL,
    instance BLOB    NOT NULL,
    role     INTEGER NOT NULL,
    PRIMARY KEY (owner, workload, revision, slot)
) WITHOUT ROWID;

-- Whether an environment has secrets, and which version.
CREATE TABLE env_secrets (
    env     TEXT NOT NULL PRIMARY KEY,
    version TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE policy (
    hash   TEXT    NOT NULL PRIMARY KEY,
    name   TEXT    NOT NULL,
    body   TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    active INTEGER NOT NULL                  -- 1 for the one in force
) WITHOUT ROWID;

-- Requests that found no room: what an autoscaler should know.
CREATE TABLE demand (
    shape    TEXT    NOT NULL PRIMARY KEY,   -- hash of owner, code and spec
    owner    TEXT    NOT NULL,
    code     TEXT    NOT NULL,
    spec     TEXT    NOT NULL,
    times    INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- The event log, one row a transaction: many events share its cost.
CREATE TABLE event_segment (
    id     INTEGER PRIMARY KEY,              -- the order of writing
    first  INTEGER,                          -- number of its first event, dense over all segments
    count  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    origin TEXT    NOT NULL,                 -- the chain of the writer, so that it knows its own
    body   TEXT    NOT NULL                  -- JSON
);

CREATE UNIQUE INDEX event_segment_first ON event_segment (first);

-- One chain of receipts per writer, so that chaining serialises nothing.
CREATE TABLE chain (
    id         TEXT    NOT NULL PRIMARY KEY,
    length     INTEGER NOT NULL,             -- receipts so far
    head       BLOB    NOT NULL,             -- hash of the last one
    base       INTEGER NOT NULL,             -- receipts before this one were dropped by retention
    base_hash  BLOB    NOT NULL,
    started_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Decisions of one transaction, and the hash that ties them to those before.
CREATE TABLE receipt (
    chain TEXT    NOT NULL,
    n     INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    hash  BLOB    NOT NULL,
    count INTEGER NOT NULL,
    body  TEXT    NOT NULL,
    PRIMARY KEY (chain, n)
) WITHOUT ROWID;

INSERT INTO ledger (one, id, next_event, first_event)
VALUES (1, lower(hex(randomblob(16))), 1, 1);
