-- Groups are called what everyone else calls them. "group" alone is a keyword.
ALTER TABLE team RENAME TO placement_group;
ALTER TABLE team_domain RENAME TO placement_group_domain;
ALTER TABLE placement_group_domain RENAME COLUMN team TO placement_group;
ALTER TABLE team_member RENAME TO placement_group_member;
ALTER TABLE placement_group_member RENAME COLUMN team TO placement_group;
ALTER INDEX team_pkey RENAME TO placement_group_pkey;
ALTER INDEX team_domain_pkey RENAME TO placement_group_domain_pkey;
ALTER INDEX team_member_pkey RENAME TO placement_group_member_pkey;
ALTER TABLE placement_group_domain
    RENAME CONSTRAINT team_domain_members_check TO placement_group_domain_members_check;

-- Servers of the release before go on working while they are upgraded one after the other: they read
-- and write groups under the old names. A later release drops these.
CREATE VIEW team AS
    SELECT id, owner, kind, strength, topology, max_per_domain, home FROM placement_group;
CREATE VIEW team_domain AS
    SELECT placement_group AS team, domain, members FROM placement_group_domain;
CREATE VIEW team_member AS
    SELECT placement_group AS team, instance, role FROM placement_group_member;
