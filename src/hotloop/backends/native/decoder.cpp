// The C interface.

#include "matmul.h"

extern "C" {

// Null if the system gives no tiles to this process, or there is no memory.
Context* native_create(int num_workers) {
    if (!permit_tiles()) return nullptr;
    try {
        return new Context(num_workers);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void native_destroy(Context* context) { delete context; }

int native_has_amx() { return HAS_AMX; }

// matrix: [num_out][num_in], gate before up if it is gated; bias: [num_out] or null. Null if there is no memory.
Weights* native_pack(Context* context, int format, const float* matrix, const float* bias, int num_out, int num_in,
                     int is_gated) {
    try {
        return pack_weights(context->workers, (Format)format, matrix, bias, num_out, num_in, is_gated);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void native_drop(Weights* weights) { delete weights; }

Rows* native_rows_create() { return new Rows{}; }
void native_rows_destroy(Rows* rows) { delete rows; }

// x: [num_rows][num_in], normalised before if there is a norm.
void native_pack_rows(Context* context, Rows* rows, int format, const float* x, int num_rows, int num_in,
                      const float* norm, float eps) {
    pack_rows(context->workers, *rows, (Format)format, num_rows, num_in, [=](int row, float* scratch) {
        const float* from = x + (size_t)row * num_in;
        if (!norm) return from;
        normalise(from, norm, eps, num_in, scratch);
        return (const float*)scratch;
    });
}

void native_matmul(Context* context, const Rows* rows, const Weights* weights, int then, void* out, size_t stride) {
    matmul(*context, *rows, *weights, {(Then)then, out, stride});
}

}  // extern "C"
