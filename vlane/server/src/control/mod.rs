//! The control socket: a volume's state while it serves, over HTTP/1.1 on a unix socket.
//!
//! One thread, `control`, runs all of it. The thread sleeps unless a client asks, and never touches
//! the data path. Counters are read where the lanes publish them, and a recording is a message in
//! their inboxes. Each resource is a file here: a handler with its description, from which the
//! OpenAPI document is made, and a line in [`api`].

mod cache;
mod classes;
mod counters;
mod error;
mod journal;
mod limits;
mod paced;
mod trace;
mod volume;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::oneshot;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::handover::{Arrived, Descriptors, HandedServer, HandedSocket, HandoverError};
use crate::rights::Rights;
use crate::volume::Volume;
use error::ApiError;
use vlane_socket::{Access, ListenError, Place, SocketFile};

/// The time that clients that are still reading may delay the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The handlers' context.
#[derive(Debug, Clone)]
struct Context {
    volume: Arc<Volume>,
    /// The OpenAPI document.
    document: Arc<str>,
}

/// The reason why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The socket cannot be made at that path.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The socket is not that of the process before.
    #[error(transparent)]
    TakeOver(#[from] HandoverError),
    /// The system gives no thread, or no way to wait.
    #[error("{}: cannot start the thread that answers there", path.display())]
    Thread {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// A control socket that is being served. Dropping it ends recordings in order, hangs up and
/// removes the socket.
#[derive(Debug)]
pub struct Control {
    volume: Arc<Volume>,
    rights: Rights,
    /// Its file goes when this goes.
    file: Arc<SocketFile>,
    /// For a process that takes over.
    socket: Arc<UnixListener>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves `volume` at `path`, to the process's own user only (mode 0600).
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn start(path: &Path, volume: Arc<Volume>) -> Result<Control, ControlError> {
        Control::start_for(path, Rights::All, Access::OWNER, volume)
    }

    /// Serves `volume` at `path` to users with `access`, limited by `rights`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn start_for(
        path: &Path,
        rights: Rights,
        access: Access,
        volume: Arc<Volume>,
    ) -> Result<Control, ControlError> {
        let place = Place::new(path, rights.option(), "server").access(access);
        let (socket, file) = SocketFile::listen_stream(&place)?;
        Control::serve(path, rights, socket, file, volume)
    }

    /// Serves `volume` at the socket at `path` where another process listened until now.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn take_over(
        path: &Path,
        rights: Rights,
        handed: &HandedSocket,
        from: &mut Arrived,
        volume: Arc<Volume>,
    ) -> Result<Control, ControlError> {
        let (socket, file) = handed.take(from, path)?;
        Control::serve(path, rights, socket, file, volume)
    }

    /// Has the next process listen at it; fails when this has ended, or the system gives no
    /// descriptor.
    pub fn giver(
        &self,
    ) -> impl Fn(&mut HandedServer, &mut Descriptors) -> std::io::Result<()> + Send + Sync + 'static
    {
        let (socket, file) = (Arc::downgrade(&self.socket), Arc::downgrade(&self.file));
        let rights = self.rights;
        move |handed, to| {
            let (Some(socket), Some(file)) = (socket.upgrade(), file.upgrade()) else {
                return Err(std::io::ErrorKind::NotConnected.into());
            };
            let given = Some(HandedSocket::give(to, &socket, &file)?);
            match rights {
                Rights::All => handed.control = given,
                Rights::Questions => handed.control_read_only = given,
            }
            Ok(())
        }
    }

    fn serve(
        path: &Path,
        rights: Rights,
        socket: UnixListener,
        file: SocketFile,
        volume: Arc<Volume>,
    ) -> Result<Control, ControlError> {
        let failed = |source| ControlError::Thread { path: path.to_owned(), source };
        let copy = socket.try_clone().map_err(failed)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let (router, document) = api(rights);
        let context = Context { volume: Arc::clone(&volume), document };
        let listener = {
            let _entered = runtime.enter();
            paced::Paced::new(tokio::net::UnixListener::from_std(socket).map_err(failed)?, path)
        };
        let body = move || {
            runtime.block_on(async move {
                let (ending, ended) = oneshot::channel::<()>();
                let stopped = async move {
                    let _ = stopped.await;
                    let _ = ending.send(());
                };
                let serving = axum::serve(listener, router.with_state(context))
                    .with_graceful_shutdown(stopped);
                tokio::select! {
                    _ = serving => {}
                    () = async { let _ = ended.await; tokio::time::sleep(PATIENCE).await } => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name("control".to_owned()).spawn(body).map_err(failed)?;
        Ok(Control {
            volume,
            rights,
            file: Arc::new(file),
            socket: Arc::new(copy),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Control {
    /// Removes the socket from another thread, for an end that cannot wait for this one.
    pub fn remover(&self) -> impl Fn() + Send + 'static {
        let file = Arc::clone(&self.file);
        move || file.remove()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A reader of a trace gets its end.
        self.volume.recording.end();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
        // Now, even if another process has it open: no thread listens any more.
        self.file.remove();
    }
}

#[derive(OpenApi)]
#[openapi(info(
    title = "vlane control",
    description = "State and settings of a served volume. Spoken on the unix socket that `vlane \
                   serve --control` makes."
))]
struct Document;

/// All resources, and the document that describes them.
fn api(rights: Rights) -> (Router<Context>, Arc<str>) {
    let questions = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(volume::get))
        .routes(routes!(cache::get))
        .routes(routes!(classes::get))
        .routes(routes!(counters::get))
        .routes(routes!(journal::get))
        .routes(routes!(describe));
    let all = match rights {
        Rights::All => {
            questions.routes(routes!(limits::get, limits::put)).routes(routes!(trace::get))
        }
        Rights::Questions => questions.routes(routes!(limits::get)),
    };
    let (router, document) = all.split_for_parts();
    let document = document.to_pretty_json().unwrap_or_default();
    let router = match rights {
        Rights::All => router.fallback(unknown).method_not_allowed_fallback(wrong_method),
        Rights::Questions => router
            .route("/v1/trace", any(only_questions))
            .fallback(unknown)
            .method_not_allowed_fallback(only_questions),
    };
    (router, document.into())
}

/// The OpenAPI document of this API.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "describe",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json", body = Object))
)]
async fn describe(State(context): State<Context>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], context.document.to_string()).into_response()
}

async fn unknown(uri: Uri) -> ApiError {
    ApiError::unknown(uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::wrong_method(&method, uri.path())
}

async fn only_questions(method: Method, uri: Uri) -> ApiError {
    ApiError::only_questions(&method, uri.path())
}
