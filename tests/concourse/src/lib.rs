//! A Concourse simulator: the HTTP API as recorded from a real server.
