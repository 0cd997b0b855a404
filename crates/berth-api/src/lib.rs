//! What Berth's API speaks.
