-- What the service keeps beside what is placed: small documents, who did what, and which policy was
-- in force when.

-- Small things of the service, such as tokens: nothing is counted by them. Bodies are JSON.
CREATE TABLE document (
    kind TEXT    NOT NULL,
    id   TEXT    NOT NULL,
    rev  INTEGER NOT NULL,                   -- 1 at first, one more with every change
    body TEXT    NOT NULL,
    at   INTEGER NOT NULL,                   -- when it was last changed
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

-- Who did what. Written in the transaction that did it.
CREATE TABLE audit (
    n          INTEGER PRIMARY KEY,          -- grows: retention leaves the newest row
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    origin     TEXT    NOT NULL,             -- where the actor came from
    action     TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    request_id TEXT
);

-- Each time that a policy was put in force.
CREATE TABLE policy_history (
    n    INTEGER PRIMARY KEY,
    hash TEXT    NOT NULL,
    at   INTEGER NOT NULL
);

INSERT INTO policy_history (hash, at) SELECT hash, at FROM policy WHERE active = 1;

-- Decisions of all chains, newest first. One entry a transaction, always at the end of it.
CREATE INDEX receipt_at ON receipt (at);
