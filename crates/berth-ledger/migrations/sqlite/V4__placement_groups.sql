-- Groups are called what everyone else calls them. "group" alone is a keyword.
ALTER TABLE team RENAME TO placement_group;
ALTER TABLE team_domain RENAME TO placement_group_domain;
ALTER TABLE placement_group_domain RENAME COLUMN team TO placement_group;
ALTER TABLE team_member RENAME TO placement_group_member;
ALTER TABLE placement_group_member RENAME COLUMN team TO placement_group;
