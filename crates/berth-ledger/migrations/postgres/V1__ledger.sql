-- The ledger: what is placed where, and what that leaves. Times are microseconds since the Unix
-- epoch by the database's clock. Amounts are integers: milli-CPU, MiB, Mbit/s.

-- One row: who this ledger is, and the number of the next event.
CREATE TABLE ledger (
    one         BIGINT PRIMARY KEY CHECK (one = 1),
    id          TEXT    NOT NULL,            -- a UUID; an export names its source by it
    next_event  BIGINT NOT NULL,            -- the number the next event gets
    first_event BIGINT NOT NULL             -- the oldest event that is kept
);

-- What is stated of a node, as JSON. Changing it bumps node_room.constraint_gen.
CREATE TABLE node (
    id           TEXT    NOT NULL PRIMARY KEY,
    facts        TEXT    NOT NULL,
    heartbeat_at BIGINT NOT NULL            -- whole seconds; beside the facts, since it changes often
);

-- Everything a guard reads of a node, in one narrow row.
CREATE TABLE node_room (
    node            TEXT    NOT NULL PRIMARY KEY,
    state           TEXT    NOT NULL,
    known           BIGINT NOT NULL,        -- 1 when its capacity is known; else nothing is granted
    zone            TEXT,
    rack            TEXT,
    constraint_gen  BIGINT NOT NULL,        -- rises with facts and state, never with claims
    rules_gen       BIGINT NOT NULL,        -- rises when a claim with a hard rule about others lands
    fence           BIGINT NOT NULL,        -- the highest fence given out here
    limit_cpu       BIGINT NOT NULL,
    limit_memory    BIGINT NOT NULL,
    limit_disk      BIGINT NOT NULL,
    limit_bandwidth BIGINT NOT NULL,
    limit_instances BIGINT NOT NULL,
    overhead_mib    BIGINT NOT NULL,        -- memory the hypervisor takes for each instance
    cap_mode        TEXT    NOT NULL,
    used_cpu        BIGINT NOT NULL CHECK (used_cpu >= 0),
    used_memory     BIGINT NOT NULL CHECK (used_memory >= 0),  -- without overhead
    used_disk       BIGINT NOT NULL CHECK (used_disk >= 0),
    used_bandwidth  BIGINT NOT NULL CHECK (used_bandwidth >= 0),
    used_instances  BIGINT NOT NULL CHECK (used_instances >= 0),
    used_capped     BIGINT NOT NULL CHECK (used_capped >= 0)
) WITH (fillfactor = 50); -- half empty pages: an update stays on its page and touches no index

-- Further integer classes of a node, such as gpu.
CREATE TABLE node_class (
    node  TEXT    NOT NULL,
    class TEXT    NOT NULL,
    lim   BIGINT NOT NULL,
    used  BIGINT NOT NULL CHECK (used >= 0),
    PRIMARY KEY (node, class)
);

-- One row an instance and role. It counts in every state, until it is gone.
CREATE TABLE claim (
    instance        BYTEA    NOT NULL,
    role            BIGINT NOT NULL,        -- 0 primary, 1 migration target
    node            TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    workload        TEXT,
    state           BIGINT NOT NULL,        -- 0 held, 1 binding, 2 active, 3 releasing
    cpu             BIGINT NOT NULL,
    memory          BIGINT NOT NULL,
    disk            BIGINT NOT NULL,
    bandwidth       BIGINT NOT NULL,
    capped          BIGINT NOT NULL,
    lease_until     BIGINT,                 -- only while held
    fence           BIGINT NOT NULL,
    request_id      TEXT    NOT NULL,
    batch           BYTEA,
    name            TEXT,
    spec            TEXT    NOT NULL,        -- the request as JSON, without id and name
    ties            TEXT,                    -- groups, volumes, classes, values and slot, as JSON
    release_id      TEXT,
    secrets_version TEXT,
    created_at      BIGINT NOT NULL,
    PRIMARY KEY (instance, role)
);

-- Only claims that can expire. Leases end in about the order in which they were given, so new
-- entries go to the end of it. There is no index by node on purpose: it would make every claim
-- touch one more page, and what is on a node is asked of the fleet in memory.
CREATE INDEX claim_held ON claim (lease_until) WHERE state = 0;

-- Answers that a retry gets again.
CREATE TABLE request (
    request_id TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    body_hash  BYTEA    NOT NULL,             -- the same id with another body is refused
    answer     TEXT    NOT NULL,
    at         BIGINT NOT NULL,
    PRIMARY KEY (request_id, owner)
);

-- "group" is a keyword everywhere.
CREATE TABLE team (
    id             TEXT    NOT NULL PRIMARY KEY,
    owner          TEXT,
    kind           TEXT    NOT NULL,         -- together, apart
    strength       TEXT    NOT NULL,         -- hard, soft
    topology       TEXT    NOT NULL,         -- node, rack, zone
    max_per_domain BIGINT,
    home           TEXT                      -- together: the domain its first member chose
);

-- How many members of a group are in one domain: the row that makes affinity lockable.
CREATE TABLE team_domain (
    team    TEXT    NOT NULL,
    domain  TEXT    NOT NULL,
    members BIGINT NOT NULL CHECK (members >= 0),
    PRIMARY KEY (team, domain)
);

CREATE TABLE team_member (
    team     TEXT    NOT NULL,
    instance BYTEA    NOT NULL,
    role     BIGINT NOT NULL,
    PRIMARY KEY (team, instance, role)
);

-- A local volume: where it lives and the one instance that uses it.
CREATE TABLE volume (
    id          TEXT NOT NULL PRIMARY KEY,
    owner       TEXT,
    home        TEXT NOT NULL,
    attached_to BYTEA
);

-- Discrete values: addresses, ports, network ids, licences.
CREATE TABLE pool (
    id           TEXT    NOT NULL PRIMARY KEY,
    kind         TEXT    NOT NULL,           -- ipv6, ipv4, number
    first        BYTEA    NOT NULL,           -- 16 bytes, big-endian
    last         BYTEA    NOT NULL,
    next         BYTEA    NOT NULL,           -- where the search for a free value goes on
    quarantine_s BIGINT NOT NULL            -- how long a released value rests
);

-- Values in use or at rest. A free value has no row, so a /64 is never enumerated.
CREATE TABLE pool_value (
    pool        TEXT    NOT NULL,
    value       BYTEA    NOT NULL,
    instance    BYTEA,
    role        BIGINT,
    released_at BIGINT,                     -- set while it rests
    PRIMARY KEY (pool, value)
);

-- Limits of a tenant; only tenants with a quota have a row.
CREATE TABLE tenant (
    owner           TEXT    NOT NULL PRIMARY KEY,
    limit_cpu       BIGINT,
    limit_memory    BIGINT,
    limit_disk      BIGINT,
    limit_instances BIGINT,
    used_cpu        BIGINT NOT NULL CHECK (used_cpu >= 0),
    used_memory     BIGINT NOT NULL CHECK (used_memory >= 0),
    used_disk       BIGINT NOT NULL CHECK (used_disk >= 0),
    used_instances  BIGINT NOT NULL CHECK (used_instances >= 0)
);

CREATE TABLE workload (
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    revision BIGINT NOT NULL,
    replicas BIGINT NOT NULL,
    body     TEXT    NOT NULL,               -- template and rules, as JSON
    PRIMARY KEY (owner, name)
);

-- Who sits in which slot of a workload's revision.
CREATE TABLE slot (
    owner    TEXT    NOT NULL,
    workload TEXT    NOT NULL,
    revision BIGINT NOT NULL,
    slot     BIGINT NOT NULL,
    instance BYTEA    NOT NULL,
    role     BIGINT NOT NULL,
    PRIMARY KEY (owner, workload, revision, slot)
);

-- Whether an environment has secrets, and which version.
CREATE TABLE env_secrets (
    env     TEXT NOT NULL PRIMARY KEY,
    version TEXT NOT NULL
);

CREATE TABLE policy (
    hash   TEXT    NOT NULL PRIMARY KEY,
    name   TEXT    NOT NULL,
    body   TEXT    NOT NULL,
    at     BIGINT NOT NULL,
    active BIGINT NOT NULL                  -- 1 for the one in force
);

-- Requests that found no room: what an autoscaler should know.
CREATE TABLE demand (
    shape    TEXT    NOT NULL PRIMARY KEY,   -- hash of owner, code and spec
    owner    TEXT    NOT NULL,
    code     TEXT    NOT NULL,
    spec     TEXT    NOT NULL,
    times    BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at  BIGINT NOT NULL
);

-- The event log, one row a transaction: many events share its cost.
CREATE TABLE event_segment (
    id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of writing
    first  BIGINT,                          -- number of its first event, dense over all segments
    count  BIGINT NOT NULL,
    at     BIGINT NOT NULL,
    origin TEXT    NOT NULL,                 -- the chain of the writer, so that it knows its own
    body   TEXT    NOT NULL                  -- JSON
);

CREATE UNIQUE INDEX event_segment_first ON event_segment (first);
-- Segments that committed and have no number yet; see the sequencer.
CREATE INDEX event_segment_waiting ON event_segment (id) WHERE first IS NULL;

-- One chain of receipts per writer, so that chaining serialises nothing.
CREATE TABLE chain (
    id         TEXT    NOT NULL PRIMARY KEY,
    length     BIGINT NOT NULL,             -- receipts so far
    head       BYTEA    NOT NULL,             -- hash of the last one
    base       BIGINT NOT NULL,             -- receipts before this one were dropped by retention
    base_hash  BYTEA    NOT NULL,
    started_at BIGINT NOT NULL
);

-- Decisions of one transaction, and the hash that ties them to those before.
CREATE TABLE receipt (
    chain TEXT    NOT NULL,
    n     BIGINT NOT NULL,
    at    BIGINT NOT NULL,
    hash  BYTEA    NOT NULL,
    count BIGINT NOT NULL,
    body  TEXT    NOT NULL,
    PRIMARY KEY (chain, n)
);

-- Bodies are repetitive JSON. The default compression is slow; where the server has the fast one,
-- it is used.
DO $$ BEGIN
    ALTER TABLE event_segment ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE receipt ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;

INSERT INTO ledger (one, id, next_event, first_event) VALUES (1, gen_random_uuid()::text, 1, 1);
