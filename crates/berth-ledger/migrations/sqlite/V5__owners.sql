-- A pool belongs to one tenant, or is open to all: those that were there before are open.
ALTER TABLE pool ADD COLUMN owner TEXT;

-- Secrets belong to an environment of a tenant. Those that were there before have no tenant, and are
-- for environments of that name whose tenant has none of its own.
CREATE TABLE env_secrets_of_tenants (
    env     TEXT NOT NULL,
    version TEXT NOT NULL,
    owner   TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (owner, env)
) WITHOUT ROWID;
INSERT INTO env_secrets_of_tenants (env, version) SELECT env, version FROM env_secrets;
DROP TABLE env_secrets;
ALTER TABLE env_secrets_of_tenants RENAME TO env_secrets;
