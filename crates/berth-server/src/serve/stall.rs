//! Clients that take nothing of an answer, or send nothing or too little of a body, are cut off: each
//! holds memory and a place that others could have.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Counts how long nothing happens. Costs nothing while something does.
struct StallTimer {
    after: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

impl StallTimer {
    const fn new(after: Duration) -> Self {
        Self { after, timer: None, waits: false }
    }

    const fn moved(&mut self) {
        self.waits = false;
    }

    /// Nothing can be done now: ready when that has been so for too long.
    fn stuck(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.waits {
            self.waits = true;
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(Instant::now() + self.after),
                None => self.timer = Some(Box::pin(tokio::time::sleep(self.after))),
            }
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "peer stalled"))
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.moved();
            return done;
        }
        self.stuck(context).map(Err)
    }
}

/// A stream whose other side must take what is written.
pub(super) struct TimedStream<S> {
    stream: S,
    stall: StallTimer,
}

impl<S> TimedStream<S> {
    pub(super) const fn new(stream: S, after: Duration) -> Self {
        Self { stream, stall: StallTimer::new(after) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.stall.watch(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.stall.watch(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.stall.watch(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.stall.watch(context, done)
    }
}

/// The least that a body must bring in a second, on average, once it has been waited for as long as a client
/// may stall: a large one has as much more time as it needs at this rate.
const LEAST_BYTES_PER_SECOND: u64 = 4096;

/// A body whose sender must send, and fast enough.
pub(super) struct TimedBody {
    body: Incoming,
    stall: StallTimer,
    rate: RateTimer,
}

impl TimedBody {
    pub(super) const fn new(body: Incoming, after: Duration) -> Self {
        Self { body, stall: StallTimer::new(after), rate: RateTimer::new(after) }
    }
}

/// Counts how long a body was waited for, all in all. The time that its reader takes does not count.
struct RateTimer {
    allowed: Duration,
    waited: Duration,
    since: Option<Instant>,
}

impl RateTimer {
    const fn new(allowed: Duration) -> Self {
        Self { allowed, waited: Duration::ZERO, since: None }
    }

    /// Part of the body came. Returns whether it was in time.
    fn received(&mut self, bytes: usize, now: Instant) -> bool {
        self.waited += self.since.take().map_or(Duration::ZERO, |since| now - since);
        let is_in_time = self.waited <= self.allowed;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.allowed = self.allowed.saturating_add(Duration::from_micros(
            bytes.saturating_mul(1_000_000) / LEAST_BYTES_PER_SECOND,
        ));
        is_in_time
    }

    /// More has to be waited for.
    fn waits(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => {
                self.stall.moved();
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                let bytes = data.map_or(0, Bytes::len);
                if !self.rate.received(bytes, Instant::now()) {
                    let error = io::Error::new(io::ErrorKind::TimedOut, "body came too slowly");
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            // Whoever sends nothing at all is cut off by the first timer; what comes is judged when it does.
            Poll::Pending => {
                self.rate.waits(Instant::now());
                self.stall.stuck(context).map(|error| Some(Err(error.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
