//! What holds for permits beside the arithmetic: numbers of requests, restarts, units that change,
//! headroom, and who may ask.
