//! Clients that take nothing of an answer, or send nothing of a body, are cut off: each holds memory
//! and a place that others could have.

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

/// A body whose sender must send.
pub(super) struct TimedBody {
    body: Incoming,
    stall: StallTimer,
}

impl TimedBody {
    pub(super) const fn new(body: Incoming, after: Duration) -> Self {
        Self { body, stall: StallTimer::new(after) }
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
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => self.stall.stuck(context).map(|error| Some(Err(error.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
