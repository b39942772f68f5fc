"""Encoders of text: BERT and its relatives."""

from __future__ import annotations

import transformers as hf

from tcexport.tools.zoo_rows import Row, ids, mask, row

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
TEXT = {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}


@row(batch=(1, 4), seq=(1, 40))
def bert() -> Row:
    return hf.BertModel(hf.BertConfig(**SMALL)), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def bert_token_types() -> Row:
    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL))
    return model, {**TEXT, "token_type_ids": ids("batch", "seq", below=2)}


@row(batch=(1, 4), seq=(1, 40))
def distilbert() -> Row:
    config = hf.DistilBertConfig(
        vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64
    )
    return hf.DistilBertModel(config), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def roberta() -> Row:
    return hf.RobertaModel(hf.RobertaConfig(**SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def albert() -> Row:
    return hf.AlbertModel(hf.AlbertConfig(embedding_size=16, **SMALL)), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def electra() -> Row:
    return hf.ElectraForTokenClassification(hf.ElectraConfig(embedding_size=16, **SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def mpnet() -> Row:
    return hf.MPNetModel(hf.MPNetConfig(**SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def deberta_v2() -> Row:
    config = hf.DebertaV2Config(
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=16,
        **SMALL,
    )
    return hf.DebertaV2Model(config), TEXT


@row(batch=(1, 4), seq=(1, 40))
def modernbert() -> Row:
    config = hf.ModernBertConfig(local_attention=16, pad_token_id=0, **SMALL)
    return hf.ModernBertModel(config), TEXT


@row(batch=(1, 4), seq=(1, 40))
def mobilebert() -> Row:
    config = hf.MobileBertConfig(
        vocab_size=99,
        hidden_size=32,
        embedding_size=16,
        intra_bottleneck_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return hf.MobileBertModel(config), TEXT


@row(batch=(1, 4), seq=(1, 40))
def roformer() -> Row:
    return hf.RoFormerModel(hf.RoFormerConfig(**SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def fnet() -> Row:
    config = hf.FNetConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    return hf.FNetModel(config), {"input_ids": ids("batch", "seq")}


@row(batch=(1, 4), seq=(1, 40))
def squeezebert() -> Row:
    return hf.SqueezeBertModel(hf.SqueezeBertConfig(embedding_size=32, **SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def convbert() -> Row:
    return hf.ConvBertModel(hf.ConvBertConfig(embedding_size=16, **SMALL)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def esm() -> Row:
    config = hf.EsmConfig(pad_token_id=1, position_embedding_type="rotary", **SMALL)
    return hf.EsmModel(config), TEXT


@row(batch=(1, 4), seq=(1, 40))
def xlm() -> Row:
    config = hf.XLMConfig(
        vocab_size=99, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64
    )
    return hf.XLMModel(config), TEXT


@row(batch=(1, 4), seq=(1, 40))
def xlnet() -> Row:
    config = hf.XLNetConfig(
        vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64, use_mems_eval=False
    )
    return hf.XLNetModel(config), TEXT
