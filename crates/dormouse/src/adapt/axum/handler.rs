//! A handler whose requests are charged to a group.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::axum::body::Body;
use ::axum::extract::Request;
use ::axum::handler::Handler;
use ::axum::response::Response;
use pin_project_lite::pin_project;

use crate::adapt::body::Sending;
use crate::adapt::cloned::ClonedFor;
use crate::adapt::responded::responded;
use crate::adapt::tower::{grouped, sending};
use crate::core::group::Group;
use crate::core::task::{Task, poll_to_its_end};

/// Charges the requests of `handler` to `group`, from its extractors to the end of the response's
/// body. [`GroupLayer`](crate::tower::GroupLayer) does this for all routes of a router, and finds
/// the group by the request.
///
/// ```
/// use axum::{Router, routing::get};
/// use dormouse::{Group, axum::handler};
///
/// async fn menu() -> &'static str {
///     "tea"
/// }
/// let menu = handler(Group::new("GET /menu"), menu);
/// let router: Router = Router::new().route("/menu", get(menu));
/// # let _ = router;
/// ```
///
/// # Cost
///
/// One box for each request, that of the body. Around a route or a router, axum makes further ones
/// for each layer of any kind.
pub fn handler<H>(group: Group, handler: H) -> GroupHandler<H> {
    GroupHandler { group, handler, cloned_for: ClonedFor::default() }
}

/// A handler in a group; see [`handler`].
#[derive(Debug, Clone)]
pub struct GroupHandler<H> {
    group: Group,
    handler: H,
    cloned_for: ClonedFor,
}

impl<H, T, S> Handler<T, S> for GroupHandler<H>
where
    H: Handler<T, S>,
    T: 'static,
    S: Send + 'static,
{
    type Future = GroupHandlerFuture<H, T, S>;

    fn call(mut self, request: Request, state: S) -> Self::Future {
        let task = Some(self.group.request_of(self.cloned_for.take()));
        let sending = sending(&request);
        let call = Some((self.handler, request, state));
        GroupHandlerFuture { call, future: None, task, sending, arguments: PhantomData }
    }
}

pin_project! {
    /// The future of a response; see [`handler`].
    #[must_use = "futures do nothing unless polled"]
    pub struct GroupHandlerFuture<H: Handler<T, S>, T, S> {
        // The handler is called in the first poll, so that a request enters its group once less.
        call: Option<(H, Request, S)>,
        // `None` before that, and once dropped, which happens inside the group.
        #[pin]
        future: Option<H::Future>,
        // `None` once the body has it.
        task: Option<Task>,
        sending: Sending,
        arguments: PhantomData<fn() -> T>,
    }

    impl<H: Handler<T, S>, T, S> PinnedDrop for GroupHandlerFuture<H, T, S> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let Some(task) = this.task {
                if this.call.is_some() {
                    task.cancel();
                    task.run_drop(|| *this.call = None);
                }
                task.drop_future(this.future.as_mut());
            }
        }
    }
}

impl<H: Handler<T, S>, T, S> fmt::Debug for GroupHandlerFuture<H, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandlerFuture").field("task", &self.task).finish_non_exhaustive()
    }
}

impl<H: Handler<T, S>, T, S> Future for GroupHandlerFuture<H, T, S> {
    type Output = Response;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let this = self.project();
        // None: polled after its end, as in `Instrumented`.
        let Some(task) = this.task else { return Poll::Pending };
        let mut future = this.future;
        let response = ready!(task.poll_with(cx, |cx| {
            if let Some((handler, request, state)) = this.call.take() {
                future.set(Some(handler.call(request, state)));
            }
            poll_to_its_end(future, cx)
        }));
        responded(task.group());
        Poll::Ready(charged(response, this.task.take(), *this.sending))
    }
}

/// Lets the task pay for the body. It is not generic, so all handlers share one copy of it.
fn charged(response: Response, task: Option<Task>, sending: Sending) -> Response {
    grouped(response, task, sending).map(Body::new)
}
