"""Commands of access control: user, acl."""
