//! Errors as clients get them.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// The reason why a request was not answered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The failed action, and its object.
    what: String,
    /// The reason.
    why: String,
    /// The advice.
    advice: String,
}

/// A problem with its status.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    problem: Problem,
}

impl ApiError {
    pub(super) fn new(
        status: StatusCode,
        what: impl Into<String>,
        why: impl Into<String>,
        advice: impl Into<String>,
    ) -> ApiError {
        ApiError {
            status,
            problem: Problem { what: what.into(), why: why.into(), advice: advice.into() },
        }
    }

    pub(super) fn unknown(path: &str) -> ApiError {
        ApiError::new(
            StatusCode::NOT_FOUND,
            format!("{path}: cannot be had"),
            "there is no such resource",
            "see /openapi.json for all of them",
        )
    }

    pub(super) fn only_questions(method: &Method, path: &str) -> ApiError {
        ApiError::new(
            StatusCode::FORBIDDEN,
            format!("{method} {path}: cannot be done here"),
            "this socket is for questions only (--control-read-only)",
            "ask at the socket of --control",
        )
    }

    pub(super) fn wrong_method(method: &Method, path: &str) -> ApiError {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{method} {path}: cannot be done"),
            "the resource does not have this method",
            "see /openapi.json for the methods of each resource",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}
