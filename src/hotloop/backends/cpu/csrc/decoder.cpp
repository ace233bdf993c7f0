// The C interface.

#include "decoder.h"

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

// matrix: [num_out][num_in], gate before up if it is gated; bias: [num_out] or null. Null if there is no memory.
Weights* native_pack(Context* context, int format, const float* matrix, const float* bias, int num_out, int num_in,
                     int is_gated, int in_floats) {
    try {
        return pack_weights(context->workers, (Format)format, matrix, bias, num_out, num_in, is_gated, in_floats);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// parts: rows as a GGUF file has them, one below the other, which have to stay until native_finish; format: strips of them,
// or int8. Null if there is no memory, or 16 neighbours differ in kind.
Weights* native_pack_parts(Context* context, int format, int num_parts, const Part* parts, const float* bias, int num_in,
                           int is_gated, int in_floats) {
    try {
        const std::vector<Part> all(parts, parts + num_parts);
        return pack_parts(context->packing, (Format)format, all, bias, num_in, is_gated, in_floats);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Parts are packed in the background: before the first product all have to be, before any is dropped none is any more.
void native_finish(Context* context) { context->packing.finish(); }
void native_cancel(Context* context) { context->packing.cancel(); }

void native_drop(Weights* weights) { delete weights; }

Rows* native_rows_create() { return new Rows{}; }
void native_rows_destroy(Rows* rows) { delete rows; }

// x: [num_rows][num_in], normalised before if there is a norm.
void native_pack_rows(Context* context, Rows* rows, const Weights* next, const float* x, int num_rows,
                      const float* norm, float eps) {
    pack_rows(context->workers, *rows, *next, num_rows, Source<float>{x, next->num_in, norm, eps});
}

void native_matmul(Context* context, const Rows* rows, const Weights* weights, int then, void* out, size_t stride) {
    matmul(*context, *rows, *weights, {(Then)then, out, stride});
}

// Weights and norms stay the caller's, and where they are.
Decoder* decoder_create(Context* context, const Shape* shape) {
    return new Decoder{*context, *shape, std::vector<Layer>(shape->num_layers)};
}

void decoder_destroy(Decoder* decoder) { delete decoder; }

// table: the embedding, [vocab_size] rows as a file has them, which have to stay.
void decoder_set_ends(Decoder* d, const Part* table, const float* norm, const Weights* head) {
    d->table = *table, d->norm = norm, d->head = head;
}

void decoder_set_layer(Decoder* d, int index, const Layer* layer) { d->layers[index] = *layer; }

// logit_rows: rows of the batch, ascending; logits: [num_logits][vocab_size]. Returns 1 if there was no memory for it.
int decoder_step(Decoder* d, int num_tokens, const int64_t* token_ids, int num_logits, const int64_t* logit_rows,
                 const DeltaBatch* batch, float* logits) {
    try {
        run_step(*d, num_tokens, token_ids, num_logits, logit_rows, *batch, logits);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // extern "C"
