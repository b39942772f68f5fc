/* Load a .tcpkg and call it from C, or from any language that calls C. A plain C interface: opaque
 * handles, no exceptions, no layout that changes.
 *
 * Every function that can fail answers NULL, or an error with a code and a text, both as the Python
 * runtime has them (`tcexport explain TC301`); free it with tcexport_error_free. What a function was to
 * make is then left alone. A NULL where something is needed is TC008. Text is UTF-8.
 *
 * libtcexport.so is built by CMakeLists.txt beside this file; example.c is a program around it.
 */
#ifndef TCEXPORT_H
#define TCEXPORT_H

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#if defined(__GNUC__)
#define TCEXPORT_API __attribute__((visibility("default")))
#else
#define TCEXPORT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a function or a struct changes its meaning; what is there does not otherwise. */
#define TCEXPORT_ABI 3
TCEXPORT_API int tcexport_abi(void);

typedef struct tcexport_error tcexport_error;
typedef struct tcexport_model tcexport_model;
typedef struct tcexport_session tcexport_session;
typedef struct tcexport_results tcexport_results;

/* --- errors ------------------------------------------------------------------------------------- */

/* What an error is about; the numbers are the exit statuses of `tcexport run`. */
typedef enum {
  TCEXPORT_USAGE = 2,    /* an option, a key, a session that is in use */
  TCEXPORT_BUNDLE = 3,   /* the file cannot be trusted, or not run here */
  TCEXPORT_CALL = 4,     /* the call lies outside of the contract */
  TCEXPORT_INTERNAL = 5  /* the compiled code failed, or memory is short */
} tcexport_kind;

TCEXPORT_API const char *tcexport_error_code(const tcexport_error *error);    /* "TC301" */
TCEXPORT_API const char *tcexport_error_text(const tcexport_error *error);    /* all lines */
TCEXPORT_API const char *tcexport_error_message(const tcexport_error *error); /* the first one's */
TCEXPORT_API tcexport_kind tcexport_error_kind(const tcexport_error *error);
TCEXPORT_API void tcexport_error_free(tcexport_error *error); /* as all `free`s: NULL will do */

/* --- values ------------------------------------------------------------------------------------- */

typedef enum {
  TCEXPORT_TENSOR = 0,
  TCEXPORT_NONE = 1,
  TCEXPORT_BOOL = 2,
  TCEXPORT_INT = 3,
  TCEXPORT_FLOAT = 4,
  TCEXPORT_STR = 5
} tcexport_type;

/* An argument by its path ("x", "batch.ids"), a result, or a state by its name. Of the fields behind
 * `type`, the one that it names counts: `tensor` on the CPU; `integer` for INT, and 0 or 1 for BOOL;
 * `real`; `text` for STR. A result has its `text` whatever its type (an INT may be beyond 64 bits: then
 * `integer` is 0). Strides of NULL are those of a contiguous tensor. */
typedef struct {
  const char *path;
  tcexport_type type;
  const DLTensor *tensor;
  int64_t integer;
  double real;
  const char *text;
} tcexport_value;

TCEXPORT_API size_t tcexport_results_count(const tcexport_results *results);
/* Lives as long as `results`. NULL beyond the last one. */
TCEXPORT_API const tcexport_value *tcexport_results_at(const tcexport_results *results, size_t index);
/* The variant that served a call, where the bundle has variants; "" otherwise. Lives as long. */
TCEXPORT_API const char *tcexport_results_variant(const tcexport_results *results);
TCEXPORT_API void tcexport_results_free(tcexport_results *results);

/* --- models ------------------------------------------------------------------------------------- */

/* Sizes `lo`, `lo + step`, … up to `hi` of a dim. A step of 0 counts as 1; `endless` is not 0 where there
 * is no `hi`. */
typedef struct {
  const char *dim;
  int64_t lo, hi, step;
  int endless;
} tcexport_range;

/* Is told of a call that was refused, and may answer it: with `*results`, as from another model, or with
 * an error of its own. Where it leaves `*results` alone and answers NULL, the caller gets the refusal. What
 * it is given, the call's arguments by their paths and `refusal`, lives until it returns. */
typedef tcexport_error *(*tcexport_violation)(void *context, const tcexport_value *arguments,
                                              size_t count, const tcexport_error *refusal,
                                              tcexport_results **results);

/* Zero is the default of every field. `threads`: worker threads of one call, 1 by default.
 * `keys`: files of public keys (PEM, or key lists), `key_count` of them; where it is not NULL, one of
 * them must have signed the bundle, and no byte of it is believed before. `memory_limit`: bytes that one
 * call may allocate, beside its arguments and the weights; one that would need more is refused before it
 * runs. `serves`: `serve_count` ranges that must be served, and within the limit. `device`: "cpu", which
 * is the default; "auto" is the same where the bundle has no code for GPUs, and all else is refused.
 * `variant`: serve with this one of the bundle's variants alone. `on_violation` is called with `context`,
 * for each call that is refused, in the call's thread. `count_sizes`: where it is not 0, count which
 * sizes calls have. */
typedef struct {
  int threads;
  const char *const *keys;
  size_t key_count;
  int64_t memory_limit;
  const tcexport_range *serves;
  size_t serve_count;
  const char *device;
  const char *variant;
  tcexport_violation on_violation;
  void *context;
  int count_sizes;
} tcexport_options;

/* TC401 to TC410; TC006, TC008, TC011, TC014. `options` may be NULL. */
TCEXPORT_API tcexport_error *tcexport_load(const char *path, const tcexport_options *options,
                                           tcexport_model **model);
/* A session keeps what it needs of its model. */
TCEXPORT_API void tcexport_model_free(tcexport_model *model);

TCEXPORT_API size_t tcexport_input_count(const tcexport_model *model);
/* The path of an input, in the contract's order; lives as long as the model. NULL beyond the last. */
TCEXPORT_API const char *tcexport_input_path(const tcexport_model *model, size_t index);

/* Counts since the model was loaded, its sessions' calls among them: "calls"; "copies", inputs that had to
 * be copied, and "copied_bytes"; "seconds" in compiled code (a FLOAT, the others INT). With what they are
 * of as their `text`: "violations" by code, "guards" by the guard that refused, "variants" that served. */
TCEXPORT_API tcexport_error *tcexport_model_metrics(const tcexport_model *model,
                                                    tcexport_results **metrics);

/* The sizes that calls had, those of most calls first: one STR, JSON for `tcexport advise --shapes`. An
 * empty list unless the model was loaded with `count_sizes`. */
TCEXPORT_API tcexport_error *tcexport_model_seen(const tcexport_model *model,
                                                 tcexport_results **sizes);

/* Gives back what is kept of the last call, and what the C library has not returned to the system yet.
 * `bytes`, where it is not NULL: by how many the process became smaller; -1 where the system does not
 * tell. */
TCEXPORT_API tcexport_error *tcexport_release_memory(tcexport_model *model, int64_t *bytes);

/* Checks a call and runs it: TC301 to TC320, TC601, TC602; TC321 for a model with state. Arguments are
 * read until it returns, and not written to. Results have memory of their own. Calls of one model from
 * several threads wait for each other: load one for each thread that is to run beside others. */
TCEXPORT_API tcexport_error *tcexport_call(tcexport_model *model, const tcexport_value *arguments,
                                           size_t count, tcexport_results **results);

/* --- sessions: a model with a state of its own (docs/state.md) ------------------------------------ */

/* All of these: TC322, another thread uses the session. */
TCEXPORT_API tcexport_error *tcexport_session_new(const tcexport_model *model,
                                                  tcexport_session **session);
TCEXPORT_API void tcexport_session_free(tcexport_session *session);
/* As tcexport_call; TC323, the last call failed while it ran; TC325, the model draws random numbers, and
 * the session has no seed. */
TCEXPORT_API tcexport_error *tcexport_session_call(tcexport_session *session,
                                                   const tcexport_value *arguments, size_t count,
                                                   tcexport_results **results);
/* Lets the random numbers of the next calls be those of `seed`, from the first on: as Python's
 * session.seed, bit by bit. TC008: the model draws none. */
TCEXPORT_API tcexport_error *tcexport_session_seed(tcexport_session *session, int64_t seed);
/* Makes the state what it was at export; random numbers need a new seed. */
TCEXPORT_API tcexport_error *tcexport_session_reset(tcexport_session *session);
/* A copy of the state: tensors by name. TC323. */
TCEXPORT_API tcexport_error *tcexport_session_keep(tcexport_session *session,
                                                   tcexport_results **state);
/* Makes the state what tcexport_session_keep gave. TC324: it is of another model; nothing changed. */
TCEXPORT_API tcexport_error *tcexport_session_restore(tcexport_session *session,
                                                      const tcexport_value *state, size_t count);

#ifdef __cplusplus
}
#endif

#endif
