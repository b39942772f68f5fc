/* A host program in C: `tcexport_c m.tcpkg ROWS COLUMNS [team.pub]`.
 *
 * Calls a model of one float32 input of two axes with ROWS * COLUMNS numbers 0, 1, 2, …, and prints what
 * it gives, or why it refuses. Exit statuses as `tcexport run`.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tcexport.h"

static int refused(tcexport_error *error) {
  int status = (int)tcexport_error_kind(error);
  fprintf(stderr, "%s\n", tcexport_error_text(error));
  tcexport_error_free(error);
  return status;
}

static void show(const tcexport_value *value) {
  printf("%s:", value->path);
  if (value->type != TCEXPORT_TENSOR) {
    printf(" %s\n", value->text);
    return;
  }
  const DLTensor *tensor = value->tensor;
  int64_t count = 1;
  for (int axis = 0; axis < tensor->ndim; ++axis) count *= tensor->shape[axis];
  if (tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32) {
    const float *numbers = (const float *)((const char *)tensor->data + tensor->byte_offset);
    for (int64_t at = 0; at < count; ++at) printf(" %g", (double)numbers[at]);
  } else {
    printf(" %lld elements", (long long)count);
  }
  printf("\n");
}

int main(int count, char **words) {
  tcexport_model *model = NULL;
  tcexport_results *results = NULL;
  tcexport_error *error = NULL;
  if (count < 4) {
    fprintf(stderr, "tcexport_c m.tcpkg ROWS COLUMNS [team.pub]\n");
    return TCEXPORT_USAGE;
  }
  const char *keys[] = {count > 4 ? words[4] : NULL};
  tcexport_options options = {.threads = 1, .keys = count > 4 ? keys : NULL, .key_count = 1};
  error = tcexport_load(words[1], &options, &model);
  if (error) return refused(error);
  if (tcexport_input_count(model) != 1) {
    fprintf(stderr, "%s takes %zu inputs, and this program gives one\n", words[1],
            tcexport_input_count(model));
    tcexport_model_free(model);
    return TCEXPORT_USAGE;
  }

  int64_t shape[] = {atoll(words[2]), atoll(words[3])};
  size_t size = (size_t)(shape[0] * shape[1]);
  float *numbers = malloc((size ? size : 1) * sizeof *numbers);
  if (!numbers) {
    tcexport_model_free(model);
    return TCEXPORT_INTERNAL;
  }
  for (size_t at = 0; at < size; ++at) numbers[at] = (float)at;
  DLTensor tensor = {.data = numbers,
                     .device = {kDLCPU, 0},
                     .ndim = 2,
                     .dtype = {kDLFloat, 32, 1},
                     .shape = shape};
  tcexport_value argument = {.path = tcexport_input_path(model, 0), .tensor = &tensor};
  error = tcexport_call(model, &argument, 1, &results);
  free(numbers);
  int status = error ? refused(error) : 0;
  if (!error)
    for (size_t at = 0; at < tcexport_results_count(results); ++at)
      show(tcexport_results_at(results, at));
  tcexport_results_free(results);
  tcexport_model_free(model);
  return status;
}
