-- What the service keeps beside what is placed: small documents, who did what, and which policy was
-- in force when.

-- Small things of the service, such as tokens: nothing is counted by them. Bodies are JSON.
CREATE TABLE document (
    kind TEXT COLLATE "C" NOT NULL,          -- byte by byte, as lists are ordered
    id   TEXT COLLATE "C" NOT NULL,
    rev  BIGINT NOT NULL,                    -- 1 at first, one more with every change
    body TEXT   NOT NULL,
    at   BIGINT NOT NULL,                    -- when it was last changed
    PRIMARY KEY (kind, id)
);

-- Who did what. Written in the transaction that did it.
CREATE TABLE audit (
    n          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         BIGINT NOT NULL,
    actor      TEXT   NOT NULL,
    origin     TEXT   NOT NULL,              -- where the actor came from
    action     TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    request_id TEXT
);

-- Each time that a policy was put in force.
CREATE TABLE policy_history (
    n    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash TEXT   NOT NULL,
    at   BIGINT NOT NULL
);

INSERT INTO policy_history (hash, at) SELECT hash, at FROM policy WHERE active = 1;

-- Decisions of all chains, newest first, in the order in which they are read. One entry a
-- transaction, always near the end of it.
CREATE INDEX receipt_at ON receipt (at, chain COLLATE "C", n);
