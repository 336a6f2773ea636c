"""The one tree of errors a client can meet. Each class fixes its HTTP status, OpenAI type and machine-readable code;
turning one into bytes happens in gateway/wire_errors.py and nowhere else."""

from __future__ import annotations


class JoulegateError(Exception):
    """Base of all errors shown to a client. `message` is a sentence for people and carries no secret."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class BadRequest(JoulegateError):
    status = 400
    type = "invalid_request_error"
    code = "bad_request"


class Unauthorized(JoulegateError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(JoulegateError):
    status = 403
    type = "permission_error"
    code = "not_allowed"


class NotFound(JoulegateError):
    status = 404
    type = "not_found_error"
    code = "not_found"


class MethodNotAllowed(JoulegateError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(JoulegateError):
    status = 408
    type = "invalid_request_error"
    code = "body_timeout"


class HeadTimeout(JoulegateError):
    status = 408
    type = "invalid_request_error"
    code = "header_timeout"


class Conflict(JoulegateError):
    status = 409
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLarge(JoulegateError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class RateLimited(JoulegateError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Overloaded(JoulegateError):
    """The gateway sheds this request before it was started anywhere."""

    status = 429
    type = "overloaded_error"
    code = "queue_full"


class HeadersTooLarge(JoulegateError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class UpstreamFailed(JoulegateError):
    """An instance broke its promise: refused, cut, stalled, sent garbage or a 5xx."""

    status = 502
    type = "server_error"
    code = "upstream_failed"


class Unavailable(JoulegateError):
    """No instance can take the request now."""

    status = 503
    type = "server_error"
    code = "no_instance_ready"


class UpstreamTimeout(JoulegateError):
    status = 504
    type = "server_error"
    code = "upstream_timeout"
