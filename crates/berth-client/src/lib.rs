//! A typed client of Berth's API.
