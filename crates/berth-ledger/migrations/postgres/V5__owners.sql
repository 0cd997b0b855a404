-- A pool belongs to one tenant, or is open to all: those that were there before are open.
ALTER TABLE pool ADD COLUMN owner TEXT;

-- Secrets belong to an environment of a tenant. Those that were there before have no tenant, and are
-- for environments of that name whose tenant has none of its own.
ALTER TABLE env_secrets ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE env_secrets DROP CONSTRAINT env_secrets_pkey;
ALTER TABLE env_secrets ADD PRIMARY KEY (owner, env);
