// The plain arrivals of a stream, in C: what gateway/pipe.py, gateway/token_stream.py and gateway/timing.py do with them,
// byte for byte and count for count (tests/unit/test_shortcut.py compares). Whatever else arrives goes to `arrived`,
// which is Python. Plain: whole HTTP chunks of one event each, with text and nothing else. Optional (pyproject.toml):
// without it pools/shortcut.py has a base class that knows no shortcut.
//
// Why: between two arrivals of a stream its objects leave the caches, and Python touches forty of them where this
// touches one. docs/performance.md has the measurement.
#define _GNU_SOURCE  // memmem
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>

enum { MAX_CHUNKS = 64, MAX_BOUNDS = 31, MAX_DIGITS = 6 };
static const char TAIL[] = "]}]}\n\n", NULL_TAIL[] = "null}]}\n\n", PLAIN[] = "\"finish_reason\":null", DATA[] = "data:";

typedef struct {
    const char *at;
    Py_ssize_t size, kept;  // kept: up to the token ids; without ids all of it
} event;

typedef struct {
    PyObject_HEAD
    char heard, at_boundary, open;
    PyObject *write, *now_s, *answer, *mark, *bounds;  // answer: None where no ids are kept
    Py_ssize_t events, room, fold_at;
    Py_ssize_t gaps, late;
    double last_s, limit_s, total_s;
    Py_ssize_t counts[MAX_BOUNDS + 1];
} Shortcut;

static PyObject *str_arrived, *str_unwritten, *str_raw;

static int traverse(PyObject *object, visitproc visit, void *arg) {
    Shortcut *self = (Shortcut *)object;
    Py_VISIT(self->write);
    Py_VISIT(self->now_s);
    Py_VISIT(self->answer);
    Py_VISIT(self->mark);
    Py_VISIT(self->bounds);
    return 0;
}

static int clear(PyObject *object) {
    Shortcut *self = (Shortcut *)object;
    self->open = 0;
    Py_CLEAR(self->write);
    Py_CLEAR(self->now_s);
    Py_CLEAR(self->answer);
    Py_CLEAR(self->mark);
    Py_CLEAR(self->bounds);
    return 0;
}

static void dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_TYPE(object)->tp_free(object);
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The next HTTP chunk of [*at, end), without its framing. False where it is not whole, the last one, or unusual.
static int next_chunk(const char **at, const char *end, event *found) {
    Py_ssize_t size = 0;
    const char *p = *at;
    int digits = 0;
    for (; p < end && hex_value(*p) >= 0; p++, digits++) size = size * 16 + hex_value(*p);
    if (!digits || digits > MAX_DIGITS || !size || end - p < size + 4) return 0;
    if (p[0] != '\r' || p[1] != '\n' || p[2 + size] != '\r' || p[3 + size] != '\n') return 0;
    found->at = p + 2;
    found->size = size;
    *at = p + size + 4;
    return 1;
}

// Whether a chunk is one event of text and nothing else.
static int is_plain(const Shortcut *self, event *e) {
    const Py_ssize_t tail = sizeof TAIL - 1;
    if (e->size < tail || memcmp(e->at, DATA, sizeof DATA - 1) != 0) return 0;
    if (memchr(e->at, '\n', e->size) != e->at + e->size - 2 || e->at[e->size - 1] != '\n') return 0;
    if (memchr(e->at, '\r', e->size)) return 0;
    if (self->answer == Py_None) {
        e->kept = e->size;
        return memmem(e->at, e->size, PLAIN, sizeof PLAIN - 1) != NULL;
    }
    if (memcmp(e->at + e->size - tail, TAIL, tail) != 0) return 0;
    Py_ssize_t ids = e->size - tail, mark = PyBytes_GET_SIZE(self->mark);
    while (ids && (e->at[ids - 1] == ',' || (e->at[ids - 1] >= '0' && e->at[ids - 1] <= '9'))) ids--;
    if (ids <= mark || memcmp(e->at + ids - mark, PyBytes_AS_STRING(self->mark), mark) != 0) return 0;
    e->kept = ids - 1;  // the bracket goes too
    return 1;
}

// gateway/timing.py: Timing.chunk.
static int time_gap(Shortcut *self, Py_ssize_t events) {
    PyObject *now = PyObject_CallNoArgs(self->now_s);
    if (!now) return -1;
    double now_s = PyFloat_AsDouble(now), gap_s = (now_s - self->last_s) / (double)events;
    Py_DECREF(now);
    if (now_s == -1.0 && PyErr_Occurred()) return -1;
    Py_ssize_t low = 0, high = PyTuple_GET_SIZE(self->bounds);
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(self->bounds, middle)) < gap_s) low = middle + 1;
        else high = middle;
    }
    self->counts[low] += events;
    self->total_s += gap_s * (double)events;
    self->gaps += events;
    if (gap_s > self->limit_s) self->late += events;
    self->last_s = now_s;
    return 0;
}

// The events as one chunk of the client's answer, their ids taken out.
static PyObject *framed(const Shortcut *self, const event *events, int count) {
    Py_ssize_t size = 0;
    char head[24];
    int ids = self->answer != Py_None;
    for (int i = 0; i < count; i++) size += events[i].kept + (ids ? (Py_ssize_t)sizeof NULL_TAIL - 1 : 0);
    int head_size = snprintf(head, sizeof head, "%zx\r\n", (size_t)size);
    PyObject *out = PyBytes_FromStringAndSize(NULL, head_size + size + 2);
    if (!out) return NULL;
    char *to = PyBytes_AS_STRING(out);
    memcpy(to, head, head_size);
    to += head_size;
    for (int i = 0; i < count; i++) {
        memcpy(to, events[i].at, events[i].kept);
        to += events[i].kept;
        if (ids) {
            memcpy(to, NULL_TAIL, sizeof NULL_TAIL - 1);
            to += sizeof NULL_TAIL - 1;
        }
    }
    memcpy(to, "\r\n", 2);
    return out;
}

// The events as they came, for gateway/token_stream.py to read when somebody wants to. 0 where it would read them now.
static int keep(Shortcut *self, const event *events, int count) {
    if (self->answer == Py_None) return 1;
    PyObject *raw = PyObject_GetAttr(self->answer, str_raw);
    if (!raw) return -1;
    int done = PyList_CheckExact(raw) && PyList_GET_SIZE(raw) + count < self->fold_at;
    for (int i = 0; i < count && done == 1; i++) {
        PyObject *one = PyBytes_FromStringAndSize(events[i].at, events[i].size);
        if (!one || PyList_Append(raw, one) < 0) done = -1;
        Py_XDECREF(one);
    }
    Py_DECREF(raw);
    return done;
}

// 1: passed on; 0: not plain, nothing was done; -1: an exception is set.
static int pass_on(Shortcut *self, PyObject *data) {
    event events[MAX_CHUNKS];
    const char *at = PyBytes_AS_STRING(data), *end = at + PyBytes_GET_SIZE(data);
    int count = 0;
    while (at < end) {
        if (count == MAX_CHUNKS || !next_chunk(&at, end, &events[count]) || !is_plain(self, &events[count])) return 0;
        count++;
    }
    if (!count || count >= self->room) return 0;
    int kept = keep(self, events, count);
    if (kept <= 0) return kept;
    self->heard = 1;
    self->events += count;
    self->room -= count;
    if (time_gap(self, count) < 0) return -1;
    PyObject *out = framed(self, events, count);
    if (!out) return -1;
    PyObject *none = PyObject_CallOneArg(self->write, out);
    Py_DECREF(out);
    if (!none) return -1;
    Py_DECREF(none);
    return 1;
}

static PyObject *data_received(PyObject *object, PyObject *data) {
    Shortcut *self = (Shortcut *)object;
    if (self->open && PyBytes_CheckExact(data)) {
        int passed = pass_on(self, data);
        if (passed > 0) Py_RETURN_NONE;
        if (passed < 0) {
            self->open = 0;
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            PyObject *done = PyObject_CallMethodOneArg(object, str_unwritten, error);
            Py_XDECREF(type);
            Py_XDECREF(error);
            Py_XDECREF(trace);
            return done;
        }
    }
    return PyObject_CallMethodOneArg(object, str_arrived, data);
}

static PyObject *on_chunk_header(PyObject *object, PyObject *none) {
    ((Shortcut *)object)->at_boundary = 0;
    Py_RETURN_NONE;
}

static PyObject *on_chunk_complete(PyObject *object, PyObject *none) {
    ((Shortcut *)object)->at_boundary = 1;
    Py_RETURN_NONE;
}

// open(write, now_s, answer, mark, bounds, room, fold_at, last_s, limit_s, total_s)
static PyObject *open_(PyObject *object, PyObject *args) {
    Shortcut *self = (Shortcut *)object;
    PyObject *write, *now_s, *answer, *mark, *bounds;
    Py_ssize_t room, fold_at;
    double last_s, limit_s, total_s;
    if (!PyArg_ParseTuple(args, "OOOSO!nnddd", &write, &now_s, &answer, &mark, &PyTuple_Type, &bounds, &room, &fold_at,
                          &last_s, &limit_s, &total_s))
        return NULL;
    if (PyTuple_GET_SIZE(bounds) > MAX_BOUNDS) return PyErr_Format(PyExc_ValueError, "more than %d bounds", MAX_BOUNDS);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bounds); i++)
        if (!PyFloat_CheckExact(PyTuple_GET_ITEM(bounds, i)))
            return PyErr_Format(PyExc_TypeError, "bounds must be floats");
    Py_XSETREF(self->write, Py_NewRef(write));
    Py_XSETREF(self->now_s, Py_NewRef(now_s));
    Py_XSETREF(self->answer, Py_NewRef(answer));
    Py_XSETREF(self->mark, Py_NewRef(mark));
    Py_XSETREF(self->bounds, Py_NewRef(bounds));
    self->room = room;
    self->fold_at = fold_at;
    self->last_s = last_s;
    self->limit_s = limit_s;
    self->total_s = total_s;
    self->events = self->gaps = self->late = 0;
    memset(self->counts, 0, sizeof self->counts);
    self->open = 1;
    Py_RETURN_NONE;
}

// What passed since `open`: (events, last_s, total_s, gaps, late, counts); None where nothing did. Nothing passes any more.
static PyObject *shut(PyObject *object, PyObject *none) {
    Shortcut *self = (Shortcut *)object;
    PyObject *counts = NULL, *told = Py_None;
    if (self->bounds && self->events) {
        Py_ssize_t size = PyTuple_GET_SIZE(self->bounds) + 1;
        if (!(counts = PyList_New(size))) return NULL;
        for (Py_ssize_t i = 0; i < size; i++) {
            PyObject *one = PyLong_FromSsize_t(self->counts[i]);
            if (!one) {
                Py_DECREF(counts);
                return NULL;
            }
            PyList_SET_ITEM(counts, i, one);
        }
        told = Py_BuildValue("nddnnN", self->events, self->last_s, self->total_s, self->gaps, self->late, counts);
        if (!told) return NULL;
    } else {
        Py_INCREF(told);
    }
    clear(object);
    return told;
}

static PyMethodDef methods[] = {
    {"data_received", data_received, METH_O, NULL},
    {"on_chunk_header", on_chunk_header, METH_NOARGS, NULL},
    {"on_chunk_complete", on_chunk_complete, METH_NOARGS, NULL},
    {"open", open_, METH_VARARGS, NULL},
    {"shut", shut, METH_NOARGS, NULL},
    {NULL},
};
static PyMemberDef members[] = {
    {"heard", T_BOOL, offsetof(Shortcut, heard), 0, NULL},
    {"at_boundary", T_BOOL, offsetof(Shortcut, at_boundary), 0, NULL},
    {NULL},
};
static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pools._shortcut.Shortcut",
    .tp_basicsize = sizeof(Shortcut),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_members = members,
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_shortcut", .m_size = -1};

PyMODINIT_FUNC PyInit__shortcut(void) {
    str_arrived = PyUnicode_InternFromString("arrived");
    str_unwritten = PyUnicode_InternFromString("unwritten");
    str_raw = PyUnicode_InternFromString("raw");
    PyObject *made = PyModule_Create(&module);
    if (!made || !str_arrived || !str_unwritten || !str_raw || PyModule_AddType(made, &type) < 0) return NULL;
    return made;
}
